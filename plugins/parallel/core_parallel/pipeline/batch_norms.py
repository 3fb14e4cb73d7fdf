"""Batch norms, which take their statistics from whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core import ModuleError
from core.contract import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core_parallel.pipeline.schedules import Schedule


def microbatches_for(
    user: nn.Module,
    microbatches: int | None,
    schedule: Schedule | None = None,
    repeated: Iterable[tuple[str, nn.Module]] = (),
) -> int | None:
    """The number of microbatches for a model, None if it follows from the batch: batch norms take
    whole batches.

    Args:
        user: the model.
        microbatches: that were asked for.
        schedule: that was asked for.
        repeated: modules by name that compute several times a batch.

    Raises:
        ModuleError: a batch norm would see microbatches, or one batch twice, or speak with ranks
            that have none.
    """
    norms = [
        (name, part)
        for name, part in user.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm)
    ]
    for name, norm in repeated:
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            raise ModuleError(
                f"{type(norm).__name__} {name!r} is in no part of the pipeline, so each rank would "
                "run it several times, and its statistics count a batch more than once. Name the "
                "parts that make up all of forward, by pipeline() or parts=."
            )
    for name, norm in norms:
        if isinstance(norm, nn.SyncBatchNorm):
            raise ModuleError(
                f"SyncBatchNorm {name!r} waits for all ranks, and one stage of the pipeline has "
                "it. Use BatchNorm, or a norm that doesn't depend on the batch, such as GroupNorm."
            )
        if schedule is not None:
            text = (
                f"{type(norm).__name__} {name!r} would take its statistics from microbatches, of "
                f"which schedule={schedule.name!r} needs several. Leave schedule out, or use a "
                "norm that doesn't depend on the batch, such as GroupNorm."
            )
            refuse(ModuleError(text), axis="pipeline")
        if microbatches not in (None, 1):
            raise ModuleError(
                f"{type(norm).__name__} {name!r} would take its statistics from "
                f"microbatches={microbatches} of a batch, and not from the whole. Say "
                "microbatches=1, or use a norm that does not depend on the batch, such as "
                "GroupNorm."
            )
    return 1 if norms else microbatches
