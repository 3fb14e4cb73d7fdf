"""A loader with a position: where the loop is, and where the next iteration goes on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from core.contract import CheckpointError
from core.data.loader import sampler_of, set_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Feed:
    """One rank's loader, read epoch after epoch. Counting costs a step nothing: it happens when somebody asks.

    What a position consists of depends on the loader:

    - with a `ShardedSampler`: samples of the global order, the same on every rank;
    - with `state_dict` and `load_state_dict` of its own, as torchdata's StatefulDataLoader: what it says, on each rank
      another. An epoch that begins at its first batch is begun anew;
    - any other: batches of this rank, which are read again up to there.

    The call sequence, all ranks: `begin(epoch)`, perhaps after `load_state_dict(state)`; `open()`; `count(n)` and
    `state_dict()` at any time.

    Attributes:
        loader: yields batches.
        epoch: number of the epoch that is on, from 0.
        num_batches: batches of this epoch that the loop was given, as far as they are counted.
    """

    def __init__(self, loader: Any, source: Any = None) -> None:
        """Wrap a loader.

        Args:
            loader: yields batches.
            source: the loader that was sharded, if the strategy has made another kind from it.
        """
        self.loader = loader
        self.epoch = self.num_batches = 0
        self._source = loader if source is None else source
        self._sampler = sampler_of(self._source)
        self._is_restored = False
        self._unread_state: Any = None

    @property
    def differs_by_rank(self) -> bool:
        """Whether `state_dict` is right for this rank only."""
        return self._sampler is None and self._keeps_state

    @property
    def _keeps_state(self) -> bool:
        return all(callable(getattr(self.loader, name, None)) for name in ("state_dict", "load_state_dict"))

    def begin(self, epoch: int) -> None:
        """The next iteration is this epoch: from its first batch, or from where a loaded state stands in it."""
        if epoch != self.epoch:
            self.epoch, self.num_batches, self._is_restored = epoch, 0, False
        set_epoch(self._source, epoch)

    def open(self) -> Iterator[Any]:
        """The epoch's batches: all of them, or those after the position that was loaded."""
        was_restored, self._is_restored = self._is_restored, False
        if was_restored and self._sampler is None:
            return self._open_at_position()
        self.num_batches = self.num_batches if was_restored else 0
        batches: Iterator[Any] = iter(self.loader)
        return batches

    def _open_at_position(self) -> Iterator[Any]:
        state, self._unread_state = self._unread_state, None
        if state is not None:
            self.loader.load_state_dict(state)
        batches: Iterator[Any] = iter(self.loader)
        for _ in islice(batches, self.num_batches if state is None else 0):
            pass
        return batches

    def count(self, num_batches: int) -> None:
        """The loop was given so many batches of this epoch so far."""
        if self._sampler is not None:
            for _ in range(num_batches - self.num_batches):
                self._sampler.advance()
        self.num_batches = num_batches

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is."""
        state: dict[str, Any] = {"epoch": self.epoch, "num_batches": self.num_batches}
        if self._sampler is not None:
            return {**state, "sampler": self._sampler.state_dict()}
        return {**state, "loader": self.loader.state_dict()} if self._keeps_state else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there; `num_batches` is then what that is for this rank.

        Raises:
            CheckpointError: `state` was saved by another kind of loader.
        """
        if ("sampler" in state) != (self._sampler is not None):
            kinds = ("a DataLoader with a sampler", "a loader that orders its data itself")
            saved, here = kinds if "sampler" in state else kinds[::-1]
            raise CheckpointError(
                f"The checkpoint has the position of {saved}, and this is {here} ({type(self._source).__name__}). "
                "Build the loader as it was when the checkpoint was written."
            )
        self.epoch, self.num_batches, self._is_restored = state["epoch"], state["num_batches"], True
        self._unread_state = None
        if self._sampler is not None:
            self._sampler.load_state_dict(state["sampler"])
            self.num_batches = self._sampler.num_batches_given(default=self.num_batches)
        elif "loader" in state and self._keeps_state and self.num_batches:
            self._unread_state = state["loader"]
