"""The weights of batches in an accumulation window: each sample of the window counts alike, whichever rank has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import StepOutput, TrainingStep
    from core.data import Feed

    Run = Callable[[Any, int, TrainingStep], StepOutput]


def weighed(run: Run, feed: Feed, num_shares: int) -> Run:
    """A `run_training_step` that weighs the loss of each batch of the feed by the samples that it has.

    Whole windows need no weight. In a short last one, batches have different numbers of samples, or none of their own.
    """
    num_accumulated = feed.num_accumulated or 1

    def run_weighed(batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        part = feed.take_part()
        # Of the mean over ranks, and over as many batches as a whole window has, of means over samples.
        counted = part.num_samples * num_shares * num_accumulated
        step.weight = None if counted == part.num_all else counted / part.num_all
        return run(batch, batch_idx, step)

    return run_weighed
