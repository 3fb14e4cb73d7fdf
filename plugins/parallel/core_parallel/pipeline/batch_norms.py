"""Batch norms, which take their statistics from whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core import ModuleError
from core.contract import refuse

if TYPE_CHECKING:
    from core_parallel.pipeline.schedules import Schedule
    from core_parallel.stages.layout import Layout


def microbatches_for(
    layout: Layout, microbatches: int | None, schedule: Schedule | None
) -> int | None:
    """The number of microbatches for a model, None if it follows from the batch: batch norms take
    whole batches.

    Args:
        layout: of the model.
        microbatches: that were asked for.
        schedule: that was asked for.

    Raises:
        ModuleError: a batch norm would see microbatches, or one batch twice, or speak with ranks
            that have none.
    """
    norms = {
        norm: f"{type(norm).__name__} {name!r}"
        for name, norm in layout.user.named_modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm)
    }
    around = {module for _, module in layout.modules_around()}
    for norm, title in norms.items():
        if norm in around.intersection(layout.module.modules()):
            raise ModuleError(
                f"{title} is in no part of the pipeline, so each rank would run it several times, "
                "and its statistics count a batch more than once. Name the parts that make up all "
                "of forward, by pipeline() or parts=."
            )
        if isinstance(norm, nn.SyncBatchNorm):
            raise ModuleError(
                f"{title} waits for all ranks, and one stage of the pipeline has it. Use "
                "BatchNorm, or a norm that doesn't depend on the batch, such as GroupNorm."
            )
        if schedule is not None or microbatches not in (None, 1):
            text = (
                f"{title} would take its statistics from microbatches, and not from whole "
                "batches. Leave schedule out, and say microbatches=1; or use a norm that doesn't "
                "depend on the batch, such as GroupNorm."
            )
            refuse(ModuleError(text), axis="pipeline")
    if norms:
        return 1
    return microbatches
