"""A loader of an evaluation, and how many of its batches are wanted on a rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from core.data import read_windows
from core_training.settings.options import is_whole, resolve_limit
from core_training.stage_data.combined import CombinedLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.contract import Strategy
    from core.data import MicroBatch
    from core_training.settings.options import Amount, NumBatches
    from core_training.stage_data.resumable_loader import ResumableLoader

UNKNOWN = float("inf")


@dataclass(frozen=True, slots=True)
class StageLoader:
    """A loader of one rank, and how many of its batches are wanted; infinite if it doesn't know its
    length.

    Attributes:
        resumables: what it reads.
        uneven: of the iteration that is on, the batches that don't weigh as much as others; see
            `ShardedSampler`.
        limit: the most batches that the user wants; infinite for all.
        together: whose ranks agree before each batch, where they must make the same number of
            steps, and may have other numbers of batches; None elsewhere.
    """

    loader: Any
    resumables: Sequence[ResumableLoader]
    uneven: dict[int, MicroBatch]
    num_batches: NumBatches = UNKNOWN
    limit: NumBatches = UNKNOWN
    together: Strategy | None = None

    def limited(self, num_batches: NumBatches) -> StageLoader:
        """The same loader, with so many batches at most."""
        return replace(
            self, num_batches=min(self.num_batches, num_batches), limit=min(self.limit, num_batches)
        )

    def counted(self, amount: Amount, name: str, longest: NumBatches) -> StageLoader:
        """The same loader, with its number of batches.

        Args:
            amount: of batches that the user wants.
            name: of the Trainer's argument for that.
            longest: batches of the rank that has most: a fraction is of those.
        """
        wanted = limit = resolve_limit(amount, longest, name=name)
        if isinstance(amount, int) or is_whole(amount):
            limit = resolve_limit(amount, UNKNOWN, name=name)
        num_batches = min(wanted, length_of(self.loader))
        return replace(self, num_batches=num_batches, limit=limit)

    def batches(self) -> Iterator[Any]:
        """An iterator over as many batches as are wanted."""
        for resumable in self.resumables:
            resumable.set_window(1, lambda: self.limit)
        batches: Iterator[Any] = iter(self.loader)
        wanted = min(self.limit, length_of(self.loader))  # asked anew, since data may have grown
        if wanted != UNKNOWN:
            batches = islice(batches, int(wanted))
        if self.together is None:
            return batches
        return read_windows(
            batches,
            self.uneven,
            num_accumulated=1,
            num_batches=self.limit,
            share=self.together.data_parallel_rank,
            collectives=self.together.session.collectives,
            goes_on=True,
        )


def length_of(loader: Any) -> NumBatches:
    """Batches of a loader; infinite if it doesn't know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return UNKNOWN


def knows_length(loader: Any) -> bool:
    """True if the loader's length can be relied upon. That of an iterable data set can't: workers
    may share it out in other ways.
    """
    leaves = [loader]
    if isinstance(loader, CombinedLoader):
        leaves = [leaf for _, leaf in loader.leaves]
    estimates = (
        isinstance(leaf, DataLoader) and isinstance(leaf.dataset, IterableDataset)
        for leaf in leaves
    )
    return length_of(loader) != UNKNOWN and not any(estimates)
