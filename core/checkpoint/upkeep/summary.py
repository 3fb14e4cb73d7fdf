"""The contents of a checkpoint, for a reader."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from core.checkpoint.any_form import formats
from core.checkpoint.state.tree import leaves_of, readable
from core.contract.sharded_leaf import TensorDescription

if TYPE_CHECKING:
    from core.checkpoint.format.manifest import Manifest
    from core.contract.checkpoint_io import PathLike


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor.

    Attributes:
        name: the keys that lead to it, joined by dots.
        section: the first of them.
        shape: of the whole.
        dtype: as saved, without `torch.`.
    """

    name: str
    section: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * getattr(torch, self.dtype).itemsize  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint.

    Attributes:
        form: `"folder"` or `"file"`.
        manifest: of a folder; None for a file.
        sections: names of the top level.
        tensors: all of them.
    """

    form: str
    manifest: Manifest | None
    sections: tuple[str, ...]
    tensors: tuple[TensorRow, ...]

    def dtypes(self, section: str) -> dict[str, int]:
        """Number of elements by dtype."""
        counted: Counter[str] = Counter()
        for row in self.tensors:
            if row.section == section:
                counted[row.dtype] += math.prod(row.shape)
        return dict(counted)


def summarize(path: PathLike) -> Summary:
    """Summarize the checkpoint at `path`; of a folder, no tensor is read.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointCorruptedError: it is damaged, or not a checkpoint.
    """
    folder = formats.open_folder(path)
    if folder.is_file():
        found, state = None, formats.load_checkpoint(path)
    else:
        found, state = formats.with_folder(
            folder, lambda reader: (reader.manifest, reader.describe(looks=True))
        )
    rows = tuple(
        TensorRow(
            readable(key_path),
            str(key_path[0]),
            tuple(leaf.shape),
            str(leaf.dtype).removeprefix("torch."),
        )
        for key_path, leaf in leaves_of(state)
        if isinstance(leaf, torch.Tensor | TensorDescription)
    )
    return Summary("folder" if found else "file", found, tuple(map(str, state)), rows)
