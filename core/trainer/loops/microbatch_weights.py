"""The weights of micro-batches in an accumulation window, where some of them have fewer samples than others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import StepOutput, TrainingStep
    from core.data import ResumableLoader

    TrainBatch = Callable[[Any, int, TrainingStep], StepOutput]


def weight_loss(train_batch: TrainBatch, loader: ResumableLoader, num_shards: int) -> TrainBatch:
    """Wrap a `run_training_step`, to weight the loss of each micro-batch by its number of samples.

    Each sample of a window then counts alike, on any rank. Whole windows need no weights; in a short last one,
    micro-batches differ in size, and some ranks may repeat a sample of another.
    """
    num_accumulated = loader.num_accumulated or 1

    def train_weighted(batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        micro_batch = loader.next_micro_batch()
        # Gradients are averaged over ranks, and over as many batches as a whole window has.
        counted = micro_batch.num_samples * num_shards * num_accumulated
        step.weight = None if counted == micro_batch.num_all else counted / micro_batch.num_all
        return train_batch(batch, batch_idx, step)

    return train_weighted
