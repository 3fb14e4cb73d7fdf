"""Which storages there were at each moment, of how many bytes and for what."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "transient")
"""The uses of memory. Activations are what forward leaves for backward, inputs among it. Transient
is the rest: results that nobody keeps, gathered shards, buckets, what is computed again."""


@dataclass(eq=False)
class _Piece:
    """One storage, from its first use to its last.

    Attributes:
        size_bytes: now.
        kind: among `KINDS`; None is not yet known.
        in_backward: it came within backward.
    """

    size_bytes: int
    in_backward: bool
    kind: str | None = None


class Ledger:
    """Bytes by kind over time. A storage's kind is known later than its bytes, so the peak is found
    at the end.
    """

    def __init__(self) -> None:
        """With nothing in it."""
        self._pieces: WeakIdKeyDictionary = WeakIdKeyDictionary(ref_type=weakref.ref)
        self._changes: list[tuple[_Piece, int]] = []
        self._first_step = 0

    def see(self, tensor: torch.Tensor, in_backward: bool = False) -> None:
        """Count the tensor's storage, if it is new and has memory."""
        if tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        if storage not in self._pieces:
            piece = self._pieces[storage] = _Piece(storage.nbytes(), in_backward)
            self._changes.append((piece, piece.size_bytes))
            weakref.finalize(storage, self._end, piece).atexit = False

    def resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """Count that a storage has another size."""
        if piece := self._pieces.get(storage):
            self._changes.append((piece, size_bytes - piece.size_bytes))
            piece.size_bytes = size_bytes

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Set the kind of the storages of these tensors."""
        for tensor in tensors:
            self.see(tensor)
            if not tensor.is_meta:
                self._pieces[tensor.untyped_storage()].kind = kind

    def _end(self, piece: _Piece) -> None:
        self._changes.append((piece, -piece.size_bytes))
        if piece.kind is None and not piece.in_backward and torch._C._current_graph_task_id() != -1:
            piece.kind = "activations"  # forward has left it, and backward lets it go

    def begin_steps(self) -> None:
        """End the set-up: changes from now on belong to steps."""
        self._first_step = len(self._changes)

    def peaks(self) -> tuple[int, dict[str, int]]:
        """The most bytes in the set-up; and bytes by kind at the first moment of the most after
        it.
        """
        total, in_setup, most, at = 0, 0, 0, 0
        for index, (_, change) in enumerate(self._changes):
            total += change
            if index < self._first_step:
                in_setup = max(in_setup, total)
            elif total > most:
                most, at = total, index
        found: dict[str, int] = defaultdict(int)
        for piece, change in self._changes[: at + 1]:
            found[piece.kind or "transient"] += change
        return in_setup, {kind: found[kind] for kind in KINDS}
