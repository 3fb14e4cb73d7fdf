"""A loader whose position can be saved and restored."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from core.contract import CheckpointError
from core.data import sampler_of, set_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core.data import MicroBatch
    from core_training.settings.options import NumBatches

_CUT = ("batch_size", "num_workers")
"""Attributes of a DataLoader that decide into which batches, and in which order, an iterable data
set is cut.
"""


class ResumableLoader:
    """Wraps one rank's loader, with a position that can be saved and restored. Batches are counted
    on demand only.

    What a position consists of depends on the loader:

    - with a `ShardedSampler`: samples of the global order, the same on every rank;
    - with `state_dict` and `load_state_dict` of its own, as torchdata's StatefulDataLoader: its
      state, which differs between ranks. An epoch that begins at its first batch is begun anew;
    - any other: batches of this rank, which are read again up to there. The caller puts the random
      state back in which the epoch was opened (`reads_again`), so that a loader that drew its order
      then draws it once more.

    The call sequence, all ranks: `begin(epoch)`, perhaps after `load_state_dict(state)`; `open()`;
    `count(n)` and `state_dict()` at any time.

    Attributes:
        loader: yields batches.
        epoch: number of the epoch that is on, from 0.
        num_batches: batches of this epoch that the loop was given, as far as they are counted.
        last_read: the last batch that was read again to come to the position; None where none was.
        batches: what is left of the iteration that is on, where several loaders are read together.
    """

    def __init__(self, loader: Any, source: Any = None) -> None:
        """Wrap a loader.

        Args:
            loader: yields batches, each of `num_joined_batches` of the source's if it has that
                attribute.
            source: the loader that was sharded, if the strategy has made another kind from it.
        """
        self.loader = loader
        self.epoch = self.num_batches = 0
        if source is None:
            source = loader
        self._source = source
        self._num_joined: int = getattr(loader, "num_joined_batches", 1)
        self._sampler = sampler_of(self._source)
        self._is_restored = False
        self._unread_state: object = None
        self.last_read: object = None
        self.batches: Iterator[Any] = iter(())

    @property
    def resumables(self) -> list[ResumableLoader]:
        """The loaders that are read: this one."""
        return [self]

    @property
    def differs_by_rank(self) -> bool:
        """True if `state_dict` is right for this rank only."""
        return self._sampler is None and self._keeps_state

    @property
    def reads_again(self) -> bool:
        """True if a position is reached by reading the epoch's batches again."""
        return self._sampler is None and not self._keeps_state

    @property
    def _keeps_state(self) -> bool:
        return all(
            callable(getattr(self.loader, name, None)) for name in ("state_dict", "load_state_dict")
        )

    def begin(self, epoch: int) -> None:
        """Begin an epoch: the next iteration starts at its first batch, or where a loaded state
        stands in it.
        """
        # The epoch in which a loaded state stands goes on where it stands.
        if epoch != self.epoch:
            self.epoch, self.num_batches, self._is_restored = epoch, 0, False
        set_epoch(self._source, epoch)

    def open(self) -> Iterator[Any]:
        """The epoch's batches: all of them, or those after the position that was loaded."""
        was_restored, self._is_restored, self.last_read = self._is_restored, False, None
        if not was_restored:
            self.num_batches = 0
        if not was_restored or self._sampler is not None:
            return iter(self.loader)
        if self._unread_state is not None:
            return self._open_at_own_state()
        batches: Iterator[object] = iter(self.loader)
        for batch in islice(batches, self.num_batches):  # those that the loop had
            self.last_read = batch
        return batches

    def _open_at_own_state(self) -> Iterator[object]:
        state, self._unread_state = self._unread_state, None
        try:
            self.loader.load_state_dict(state)
            return iter(self.loader)
        except Exception as error:
            raise CheckpointError(
                f"{type(self.loader).__name__} doesn't take the state that it saved. Build it as "
                f"it was then, with as many workers. It says: {error}"
            ) from error

    @property
    def num_accumulated(self) -> int | None:
        """Batches of the windows that the order is cut into; None where it is cut into batches one
        by one.
        """
        if self._sampler is None:
            return None
        return self._sampler.num_accumulated

    @property
    def is_between_windows(self) -> bool:
        """True if the position is the end of a window that the order is cut into, from the epoch's
        beginning on.
        """
        sampler = self._sampler
        if sampler is None or sampler.num_accumulated is None or sampler.batch_size is None:
            return False
        return sampler.position % (sampler.batch_size * sampler.size * sampler.num_accumulated) == 0

    @property
    def was_recut(self) -> bool:
        """True if the epoch that goes on at the position has another number of batches than the
        loader says.
        """
        return self._sampler is not None and self._sampler.was_recut

    def check_length(self) -> None:
        """See `ShardedSampler`."""
        if self._sampler is not None:
            self._sampler.check_length()

    @property
    def uneven(self) -> dict[int, MicroBatch]:
        """Batches of the iteration that is on whose weight isn't 1; see `ShardedSampler`."""
        if self._sampler is None:
            return {}
        return self._sampler.uneven

    @property
    def is_sharded(self) -> bool:
        """True if a `ShardedSampler` cuts the order into batches."""
        return self._sampler is not None

    def set_window(self, num_accumulated: int, num_batches: Callable[[], NumBatches]) -> None:
        """Weigh the batches of the next iteration among those of an accumulation window; see
        `ShardedSampler`.
        """
        if self._sampler is not None:
            self._sampler.set_window(num_accumulated, lambda: num_batches() * self._num_joined)

    def count(self, num_batches: int) -> None:
        """Set the number of batches of this epoch that the loop was given so far."""
        if self._sampler is not None:
            for _ in range((num_batches - self.num_batches) * self._num_joined):
                self._sampler.advance()
        self.num_batches = num_batches

    def end_workers(self) -> None:
        """End workers that persist; another iteration makes new ones. A loader with a state of its
        own keeps both.
        """
        self.batches = iter(())
        if not self._keeps_state and getattr(self._source, "_iterator", None) is not None:
            self._source._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """The position of the loop."""
        state: dict[str, object] = {
            "epoch": self.epoch,
            "num_batches": self.num_batches * self._num_joined,
        }
        if self._sampler is not None:
            state["sampler"] = self._sampler.state_dict()
        elif self._keeps_state:
            state["loader"] = self.loader.state_dict()
        else:
            state["cut"] = self._cut()
        return state

    def _cut(self) -> dict[str, int | None]:
        """The attributes that decide how an order is cut into batches, if a position is reached by
        reading again.
        """
        cut: dict[str, int | None] = dict.fromkeys((*_CUT, "number of batches"))
        for name in _CUT:
            value = getattr(self._source, name, None)
            if type(value) is int:
                cut[name] = value
        if cut["num_workers"] == 0:
            cut["num_workers"] = 1  # reads in the same order
        with suppress(TypeError, NotImplementedError):
            cut["number of batches"] = len(self._source)
        return cut

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position, from which the next iteration continues; `num_batches` is then for
        this rank.

        Raises:
            CheckpointError: `state` was saved by another kind of loader.
        """
        if ("sampler" in state) != (self._sampler is not None):
            kinds = ("a DataLoader with a sampler", "a loader that orders its data itself")
            saved, here = kinds if "sampler" in state else kinds[::-1]
            raise CheckpointError(
                f"The checkpoint has the position of {saved}, and this is {here} "
                f"({type(self._source).__name__}). Build the loader as it was when the checkpoint "
                "was written."
            )
        given, self._unread_state = state["num_batches"], None
        if given and self.reads_again:
            self._check_cut(state.get("cut", {}))
        if self._sampler is not None:
            self._sampler.load_state_dict(state["sampler"])
            # The samples count: on another number of ranks they are another number of batches.
            given = self._sampler.num_batches_given(default=given)
        elif given % self._num_joined:
            raise CheckpointError(
                f"The checkpoint was saved after {given} batches of an epoch, and this strategy "
                f"takes {self._num_joined} at once from a {type(self._source).__name__}, whose "
                f"order can't be entered in between. Save after a multiple of {self._num_joined} "
                "batches, or at the end of an epoch."
            )
        self.epoch, self._is_restored = state["epoch"], True
        self.num_batches = -(-given // self._num_joined)
        if self._keeps_state and self.num_batches:
            self._unread_state = state.get("loader")

    def _check_cut(self, saved: Mapping[str, object]) -> None:
        own = self._cut()
        for name, before in saved.items():
            if own.get(name) != before:
                raise CheckpointError(
                    f"The checkpoint was saved within an epoch of a {type(self._source).__name__} "
                    f"with {name}={before}"
                    f", and now it is {own.get(name)}. Its order is entered by reading the same "
                    "batches again: build the loader as it was, or pass a checkpoint of an epoch's "
                    "end. A map-style data set, or a loader with state_dict and load_state_dict, "
                    "goes on with batches of another size."
                )
