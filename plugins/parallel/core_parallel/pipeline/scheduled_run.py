"""One step while a schedule runs it, microbatch by microbatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core_parallel.microbatches.recorded_logs import RecordedLogs

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from core_parallel.following.microbatches import FollowedMicrobatch
    from core_parallel.microbatches.counters import Counters
    from core_parallel.pipeline.draws import Seeds
    from core_parallel.pipeline.stage_module import Arguments


@dataclass(slots=True)
class ScheduledRun:
    """One step.

    Attributes:
        step: the user's, for the batch of a microbatch.
        cut: these batches.
        seeds: the random numbers.
        scale: by which losses are multiplied, and gradients divided again when all are there.
        counters: of the user's module.
        logs: what the last stage logs.
        losses, weights: of the microbatches, on the rank of the last stage.
        kinds: of what the step has returned for them.
        marked: what it has returned as their losses, while it is followed.
        reference: the weight of a batch, as it was guessed at the first microbatch.
        is_followed: what the step computes of microbatches is followed.
        modes: that follow it.
        first_arguments: of the model for the first microbatch, while it is computed apart.
    """

    step: Callable[[Any], Any]
    cut: list[Any]
    seeds: Seeds
    scale: float
    counters: Counters
    logs: RecordedLogs = field(default_factory=RecordedLogs)
    losses: list[Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    marked: list[Tensor | None] = field(default_factory=list)
    reference: float = 0.0
    is_followed: bool = False
    modes: list[FollowedMicrobatch] = field(default_factory=list)
    first_arguments: Arguments | None = None
