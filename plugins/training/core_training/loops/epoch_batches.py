"""The batches of an epoch of training, from the position of the run on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import UnsupportedError
from core.data import read_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Collectives
    from core.data import MicroBatch
    from core_training.run import Run
    from core_training.settings.options import NumBatches


class EpochBatches:
    """Opens the training loader for an epoch.

    Attributes:
        uneven: of the epoch that was opened last, batches that don't weigh as much as others.
        num_batches: of the epoch, those before the position too; infinite if unknown.
        line: between ranks, to agree on batches; None where they needn't.
    """

    num_batches: NumBatches = 0

    def __init__(self, run: Run) -> None:
        self._run = run
        self._place = (run.strategy.accelerator, run.strategy.root_device)
        self.line: Collectives | None = None
        self.uneven: dict[int, MicroBatch] = {}

    def open(self) -> Iterator[object]:
        """All ranks. The epoch's remaining batches."""
        run, loaders, batches = self._run, self._run.loaders, self._open_loader()
        self.uneven = loaders.position.uneven
        self.line = self.line or self._open_line()
        if loaders.position.is_sharded or (run.window == 1 and self.line is None):
            return batches
        return read_windows(
            batches,
            self.uneven,
            num_accumulated=run.window,
            num_batches=self.num_batches - run.progress.batch,
            has_sizes=not loaders.is_combined,
            share=run.strategy.data_parallel_rank,
            collectives=self.line,
            goes_on=run.progress.batch > 0,
            last=loaders.position.last_read,
        )

    def restore_random_state(self) -> None:
        """Restore random numbers: once, as the last of all that is restored."""
        state, self._run.restored_random_state = self._run.restored_random_state, None
        if state is not None:
            restore_random_state(state, *self._place)

    def _open_line(self) -> Collectives | None:
        """All ranks. A line between them to agree on batches, where they don't know how many they
        have, or their sizes.

        Batches of one size are taken for granted where each is a step, and ranks know how many they
        have.
        """
        run, loaders = self._run, self._run.loaders
        agrees = loaders.knows_length and (loaders.is_combined or run.window == 1)
        if agrees or loaders.position.is_sharded or not loaders.weighs or not run.session.has_peers:
            return None
        try:
            return run.strategy.background_collectives()
        except UnsupportedError:
            return None

    def _open_loader(self) -> Iterator[object]:
        """An iterator over the epoch's remaining batches, with the restored random state where a
        run goes on.

        torch's loader draws from the random state when it is opened: within an epoch that draw has
        been made before. One that is read again up to its position draws the same once more, its
        order perhaps.
        """
        run = self._run
        at_opening = (run.restored_random_state or {}).get("at_opening")
        if at_opening is not None:
            restore_random_state(at_opening, *self._place)
        run.random_state_at_opening = None
        if run.loaders.reads_again:
            run.random_state_at_opening = collect_random_state(*self._place)
        with run.signals.hidden_from_children():
            batches: Iterator[Any] = run.loaders.open_train(run.window, self._num_left)
        # a batch sampler may know it only now
        self.num_batches = self._num_left() + run.progress.batch
        if run.progress.batch >= self.num_batches:
            # the order of an epoch that is over is drawn too, so that the next one's follows it
            next(batches, None)
        self.restore_random_state()
        return batches

    def _num_left(self) -> NumBatches:
        """Batches from the position to the epoch's end."""
        # Other ranks than before, or batches of another size, may cut what is left into another
        # number of batches.
        progress = self._run.progress
        if progress.is_recut:
            return math.inf
        return self._run.loaders.count_train() - progress.batch
