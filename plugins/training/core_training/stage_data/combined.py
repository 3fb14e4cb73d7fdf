"""Several loaders as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from core.contract import CheckpointError, ConfigurationError
from core_training.stage_data.collection import fill, leaves_of
from core_training.stage_data.resumable_loader import ResumableLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.data import MicroBatch

CombinationMode = Literal["min_size", "max_size", "max_size_cycle", "sequential"]

_END = object()
# More than a run has epochs, so that one number encodes both the epoch and the pass.
_PASS_STRIDE = 1_000_000


class CombinedLoader:
    """Reads several loaders together, or one after the other. Hand it to `fit`, or iterate over it
    yourself.

    | mode | a batch is | until |
    | --- | --- | --- |
    | `min_size` | one of each loader | the shortest ends |
    | `max_size_cycle` | one of each; a shorter loader begins again | the longest ends |
    | `max_size` | one of each, None for a loader that has ended | the longest ends |
    | `sequential` | one of the first loader, then of the second, ... | the last ends |

    A batch of each comes in the structure that the loaders were given in. A loader that begins
    again within an epoch is given the epoch `epoch + 1_000_000 * pass`, so that it shuffles anew.

    Attributes:
        loaders: as they were given.
        mode: how they are read.
    """

    def __init__(self, loaders: Any, mode: CombinationMode = "min_size") -> None:
        """Combine loaders.

        Args:
            loaders: DataLoaders, or any iterables of batches, in nested dicts, lists and tuples.
            mode: how to read them; see the table.

        Raises:
            ConfigurationError: an unknown mode, or no loader.
        """
        if mode not in get_args(CombinationMode):
            known = ", ".join(map(repr, get_args(CombinationMode)))
            raise ConfigurationError(f"CombinedLoader(mode={mode!r}): expected one of {known}.")
        self.loaders, self.mode = loaders, mode
        self._lanes = [_Lane(name, ResumableLoader(loader)) for name, loader in leaves_of(loaders)]
        if not self._lanes:
            raise ConfigurationError(
                "CombinedLoader got no loader. Put at least one into the dict or list."
            )
        self._epoch, self._has_begun = 0, False

    @property
    def leaves(self) -> list[tuple[str, Any]]:
        """The loaders with their names in the structure, in the order in which they are read."""
        return list(leaves_of(self.loaders))

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: that depends on a loader which doesn't know its length.
        """
        joined: dict[str, Any] = {"sequential": sum, "min_size": min}
        lengths = [len(lane.resumable.loader) for lane in self._lanes]
        return joined.get(self.mode, max)(lengths)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        """The next epoch's batches; from the position on that was loaded."""
        if self._has_begun:
            self.set_epoch(self._epoch + 1)
        self._has_begun = True
        for lane in self._lanes:
            lane.open()
        if self.mode == "sequential":
            return _read_sequentially(self._lanes)
        read = _read_together(self._lanes, self.mode)
        return (fill(self.loaders, iter(batches)) for batches in read)

    # position -------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its first batch, or from where a loaded state
        stands in it.
        """
        self._epoch, self._has_begun = epoch, False
        for lane in self._lanes:
            lane.begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of every loader, after the batches that were given."""
        return {
            "mode": self.mode,
            "loaders": {lane.name: lane.resumable.state_dict() for lane in self._lanes},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there.

        Raises:
            CheckpointError: `state` was saved by another combination.
        """
        here, saved = [lane.name for lane in self._lanes], state.get("loaders", {})
        if state.get("mode") != self.mode or sorted(saved) != sorted(here):
            raise CheckpointError(
                f"The checkpoint has the position of CombinedLoader(mode={state.get('mode')!r}) "
                f"with the loaders {sorted(saved)}; this is mode={self.mode!r} with "
                f"{sorted(here)}. Combine the same loaders."
            )
        for lane in self._lanes:
            lane.resumable.load_state_dict(saved[lane.name])
        # The first loader may be in a later pass of the same epoch.
        self._epoch, self._has_begun = self._lanes[0].resumable.epoch % _PASS_STRIDE, False


class CombinedResumableLoader(CombinedLoader):
    """The same combination of a rank's loaders, each of which counts as it is read; used as a
    `ResumableLoader`.
    """

    is_sharded = reads_again = False
    last_read = None

    def __init__(self, combined: CombinedLoader, resumables: Sequence[ResumableLoader]) -> None:
        """Read other loaders, one for each of `combined.leaves`."""
        super().__init__(
            fill(combined.loaders, (resumable.loader for resumable in resumables)), combined.mode
        )
        self.resumables = resumables
        for lane, resumable in zip(self._lanes, resumables, strict=True):
            lane.resumable = resumable

    @property
    def loader(self) -> CombinedLoader:
        """Itself: it is iterated over."""
        return self

    @property
    def uneven(self) -> dict[int, MicroBatch]:
        """None: their batches have no common weight."""
        return {}

    @property
    def differs_by_rank(self) -> bool:
        """True if `state_dict` is right for this rank only."""
        return any(resumable.differs_by_rank for resumable in self.resumables)

    @property
    def num_batches(self) -> int:
        """Batches of this epoch that were given, a loader that is in its second pass aside."""
        counts = [
            resumable.num_batches for resumable in self.resumables if resumable.epoch < _PASS_STRIDE
        ]
        if self.mode == "sequential":
            return sum(counts)
        return max(counts, default=0)

    begin = CombinedLoader.set_epoch
    open = CombinedLoader.__iter__

    def count(self, num_batches: int) -> None:
        """Do nothing: the loaders have counted."""


class _Lane:
    """One of the loaders, which may be read several times in an epoch."""

    def __init__(self, name: str, resumable: ResumableLoader) -> None:
        self.name, self.resumable = name, resumable
        self.has_ended = False

    def begin(self, epoch: int) -> None:
        # A position that was restored may be in a later pass of this epoch: there it goes on.
        if self.resumable.epoch % _PASS_STRIDE == epoch:
            epoch = self.resumable.epoch
        self.resumable.begin(epoch)

    def open(self) -> None:
        # Read once more means read to the end before.
        self.has_ended = self.resumable.epoch >= _PASS_STRIDE
        self.resumable.batches = self.resumable.open()

    def take(self) -> Any:
        """The next batch, or `_END`, once and for all."""
        batch = next(self.resumable.batches, _END)
        if batch is _END:
            self.has_ended, self.resumable.batches = True, iter(())
        else:
            self.resumable.count(self.resumable.num_batches + 1)
        return batch

    def cycle(self) -> Any:
        """The first batch of another pass.

        Raises:
            ConfigurationError: there is none.
        """
        self.resumable.begin(self.resumable.epoch + _PASS_STRIDE)
        self.resumable.batches = self.resumable.open()
        batch = self.take()
        if batch is _END:
            raise ConfigurationError(
                f"The loader {self.name!r} gave no batch when it began again: it is empty, or an "
                "iterator that can be read once. Pass something that can be iterated over again, "
                "or mode='min_size'."
            )
        return batch


def _read_together(lanes: Sequence[_Lane], mode: CombinationMode) -> Iterator[list[object]]:
    """A batch of each. One that has begun again has ended once, and that counts: all have when the
    longest has.
    """
    while True:
        batches = []
        for lane in lanes:
            batch = lane.take()
            if batch is _END:
                if mode == "min_size" or all(other.has_ended for other in lanes):
                    return
                batch = lane.cycle() if mode == "max_size_cycle" else None
            batches.append(batch)
        yield batches


def _read_sequentially(lanes: Sequence[_Lane]) -> Iterator[object]:
    for lane in lanes:
        # not `iter(lane.take, _END)`, which compares arrays
        batch = lane.take()
        while batch is not _END:
            yield batch
            batch = lane.take()
