"""The CheckpointIO contract: writes a state to storage and reads it back."""

from __future__ import annotations

import abc
import os
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from core.contract.errors import CheckpointError
from core.text.file_urls import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

PathLike: TypeAlias = str | os.PathLike[str]
"""The path of a checkpoint: of a file or folder, or with the prefix of an object store, as in
`s3://`.
"""


class Collectives(Protocol):
    """The communication that storage needs, on plain picklable objects. Works on every strategy."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes that take part."""

    @property
    def writer(self) -> Mapping[str, Any]:
        """The saving run in plain types, for a reader of the checkpoint: the strategy's alias,
        provider and so on.
        """

    def barrier(self) -> None:
        """Wait until all are here."""

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""

    def in_background(self) -> Collectives:
        """The same ranks, for one background thread. All ranks call this, in their main thread.

        Raises:
            UnsupportedError: these ranks can't talk while the main thread does.
        """


@runtime_checkable
class DirectCollectives(Collectives, Protocol):
    """Collectives whose ranks reach each other one by one, too: those of a process group for a
    background thread.
    """

    def exchange(
        self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]
    ) -> None:
        """Send bytes to ranks, and receive some from ranks, all at once. Only ranks with something
        to do take part.

        Args:
            sends: number of a rank, and a writable buffer that it gets.
            receives: number of a rank, and a writable buffer of the size of what it sends. What one
                rank sends to another one arrives in that order.
        """

    def agree(self, vote: bool) -> bool:
        """All ranks. True if it is True on all; no rank receives more than the result."""


class CheckpointIO(abc.ABC):
    """Writes and reads checkpoints. Meant to be subclassed; three methods are all that is needed.

    A checkpoint exists whole or not at all, whenever a process dies: write beside the target under
    a temporary name, flush, then rename. Nothing that is read is ever executed. The call sequence;
    where all ranks call, the path is the
    same:

    1. `save_checkpoint(state, path)`, all ranks, at the boundary of an optimizer's step. The
       strategy has brought the state into `layout` before.
    2. `retire_checkpoint(path, successor)`, all ranks, once a later save has returned: the callback
       that keeps the best or the last checkpoints calls it. It asks `find_damage(successor)`, then
       `remove_checkpoint(path)`.
    3. `describe_checkpoint(path)`, all ranks, before a load: the session makes from it the tensors
       to be filled.
    4. `load_checkpoint(path, state=...)`, all ranks.
    5. `teardown()`, all ranks, when the strategy ends: what is still being written gets finished.

    Rank 0 alone calls `exists`, where a callback looks for what is there. The command line, which
    is one process, calls `verify_checkpoint` and `convert_checkpoint`.
    """

    layout: ClassVar[Literal["full", "sharded"]] = "full"
    """The form of state that the strategy hands over: `full`, whole tensors on rank 0 (`state` is
    None on the others); `sharded`, on every rank its own shards."""
    saves_from_all_ranks: bool = False
    """True if `save_checkpoint` gets a state on every rank with layout `full` too: an engine writes
    its own files.
    """
    is_default: bool = False
    """An instance in `plugins` that a strategy's own comes before: a package's default, not what
    the user chose.
    """
    stepped_tensors: Callable[[], Iterable[Tensor]] | None = None
    """Set before a save: gives the tensors in the state that nothing but an optimizer's next step
    is to change, so that a device may go on copying them until then."""

    @abc.abstractmethod
    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: nested dicts and lists of plain types, tensors and arrays, in the canonical form.
                For layout `sharded`, DTensors and `ShardedLeaf`s too; plain tensors and values are
                those of rank 0.
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched. Raised on all
                ranks.
        """

    @abc.abstractmethod
    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`; tensors come back on the CPU.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: for layout `sharded`, tensors, DTensors and `ShardedLeaf`s at their places in
                nested dicts and lists, of the wanted shapes. They are filled, and returned, in
                place of whole tensors.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: damaged, incomplete, or not a checkpoint; the file is named.
            CheckpointError: of any class, with `overwritten` set to true if tensors of `state` may
                have been filled.
        """

    def convert_checkpoint(
        self, source: PathLike, target: PathLike, *, reader: CheckpointIO, collectives: Collectives
    ) -> None:
        """One process. Write to `target`, in this form, the checkpoint at `source`, which is of
        another.

        By default the state goes through memory: `reader` loads it, and this saves it. Override it
        where this form is made from the files of another one, and `reader` isn't needed.

        Args:
            source: a local path or a URL that fsspec knows.
            target: likewise; nothing is there.
            reader: what loads checkpoints of the form at `source`.
            collectives: of this process alone.

        Raises:
            CheckpointError: `source` can't be read, or isn't what this form is made from; or
                `target` can't be written, and nothing is there.
        """
        state = reader.load_checkpoint(source, collectives=collectives)
        self.save_checkpoint(state, target, collectives=collectives)

    def describe_checkpoint(
        self, path: PathLike, *, collectives: Collectives
    ) -> dict[str, Any] | None:
        """All ranks. The state that was saved at `path`, with a `TensorDescription` in the place of
        each tensor.

        Raises:
            CheckpointError: as `load_checkpoint`.

        Returns:
            None if that is unknown without reading all of it.
        """
        return None

    @abc.abstractmethod
    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path`, whole. Nothing happens if it is not there."""

    def retire_checkpoint(
        self, path: PathLike, successor: PathLike, *, collectives: Collectives
    ) -> None:
        """All ranks. Delete the checkpoint at `path`, once that at `successor`, which stays, has
        been verified.

        One that is damaged takes nothing with it: a warning says so, and what is at `path` stays.
        """
        if (damage := self.find_damage(successor, collectives=collectives)) is None:
            self.remove_checkpoint(path, collectives=collectives)
        elif collectives.rank == 0:
            warnings.warn(
                f"{os.fspath(path)!r} is kept, though it was to be replaced: {damage} When a later "
                "one is whole, `core checkpoint gc FOLDER --keep 1` deletes what it replaces.",
                stacklevel=2,
            )

    def find_damage(self, path: PathLike, *, collectives: Collectives) -> str | None:
        """All ranks. The damage of the checkpoint at `path`, in words; None if there is none. The
        same on all ranks.

        By default rank 0 calls `verify_checkpoint`. Override it where ranks can do so together.
        """
        damage = None
        if collectives.rank == 0:
            try:
                self.verify_checkpoint(path)
            except CheckpointError as error:
                damage = str(error)
        return collectives.broadcast_object(damage)  # type: ignore[no-any-return]

    def exists(self, path: PathLike) -> bool:
        """Rank 0. True if a complete checkpoint is at `path`, without reading it all."""
        filesystem, name = filesystem_of(path)
        return bool(filesystem.exists(name))

    def verify_checkpoint(self, path: PathLike) -> None:
        """Rank 0. Read all of the checkpoint at `path` to find damage, as far as the form of
        storage can tell.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: it is damaged; the file is named.
        """

    def teardown(self) -> None:
        """All ranks; idempotent. Finish what is still being written."""
