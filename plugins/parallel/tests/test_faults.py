"""The comparison with one device sees what a pipeline may do wrong: each fault is put in, and is seen."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pipelines
import pytest
from faults import compares_no_ranks, first_gradient_twice, first_loss_twice, first_weight_twice

from core_parallel import MeshParallelStrategy
from core_parallel.pipeline import chain
from core_parallel.pipeline.chain import Chain
from core_parallel.pipeline.scheduled_step import ScheduledStep
from core_testing.ranks import Backend, one_device

if TYPE_CHECKING:
    from torch import Tensor

    from core_testing.ranks import Rank

_NOT_SUMMED = mock.patch.object(Chain, "added_up", nullcontext)

FAULTS: dict[str, tuple[str | None, AbstractContextManager[Any]]] = {
    "none": (None, nullcontext()),
    "none, with a schedule": ("1F1B", nullcontext()),
    "a microbatch counts twice": (None, mock.patch.object(chain, "_cut", first_gradient_twice)),
    "gradients of no part not summed": (None, _NOT_SUMMED),
    "a microbatch's gradient twice": ("1F1B", mock.patch.object(ScheduledStep, "_loss", first_loss_twice)),
    "a microbatch's weight twice": ("1F1B", mock.patch.object(ScheduledStep, "_loss", first_weight_twice)),
    "gradients of no part not summed, with a schedule": ("1F1B", _NOT_SUMMED),
}


def fit(rank: Rank, schedule: str | None = None, *, alone: bool = False) -> tuple[dict[str, Tensor], list[float]]:
    """Weights, and losses of steps."""
    seen, options = pipelines.Seen(), {"pipeline": 2, "microbatches": 2, "schedule": schedule}
    strategy = None if alone else MeshParallelStrategy(**options)
    trainer = rank.trainer(strategy, max_epochs=1, callbacks=seen, limit_val_batches=0)
    trainer.fit(pipelines.Net(noise=0.0), pipelines.loader(16, 8))
    return seen.weights, seen.steps


def fit_with_all(rank: Rank) -> list[Any]:
    """The run with each fault, in one group of ranks."""
    runs = []
    for schedule, fault in FAULTS.values():
        with compares_no_ranks(), fault:
            runs.append(fit(rank, schedule))
    return runs


@pytest.mark.slow
@pytest.mark.numbers
def test_a_fault_of_a_pipeline_is_seen() -> None:
    weights, steps = one_device("cpu").run(lambda rank: fit(rank, alone=True))[0]
    runs = Backend(MeshParallelStrategy, "cpu", 2, 1).run(fit_with_all)[0]
    for name, (found, losses) in zip(FAULTS, runs, strict=True):
        differs = max(float((found[key] - weights[key]).abs().max()) for key in weights)
        differs = max(differs, *(abs(one - other) for one, other in zip(losses, steps, strict=True)))
        assert differs < 1e-12 if name.startswith("none") else differs > 1e-5, (name, differs)
