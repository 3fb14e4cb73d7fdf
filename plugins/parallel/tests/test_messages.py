"""Messages of a step, counted as its benchmark counts them: no more than the layout needs."""

from __future__ import annotations

import runpy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend
from support.checkout import in_checkout

if TYPE_CHECKING:
    from core_testing.ranks import Rank

_BENCHMARK = in_checkout("benchmarks/parallel.py")
_PLAN = {f"{block}.{name}": word for block in (1, 2) for name, word in {"up": "colwise", "down": "rowwise"}.items()}


def _count(rank: Rank) -> tuple[int, int]:
    """Sends and collectives of this rank in a step after the first ones."""
    found = runpy.run_path(str(_BENCHMARK))
    found["make_parts"].__globals__.update(WIDTH=16, NUM_BLOCKS=2, BATCH=8)
    fabric, module = rank.fabric(), nn.Sequential(*found["make_parts"]())
    model, optimizer = fabric.setup(module, found["adam"](module))
    batch = found["make_batch"](is_divided=False)
    for _ in range(4):  # the fourth is compared, as the first is
        fabric.step(model, batch, found["compute_loss"])
        optimizer.step()
    with found["Counted"]() as counted:
        fabric.step(model, batch, found["compute_loss"])
        optimizer.step()
    return counted.sends, counted.collectives


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Each microbatch crosses once forward and once back; all ranks get the loss, and agree whether to compare.
        ({"pipeline": 2, "schedule": "1F1B", "microbatches": 4}, (4, 2)),
        # The model's result comes to all ranks: two for its form, one for its numbers.
        ({"pipeline": 2, "microbatches": 4}, (4, 3)),
        # Of each block, the sum of its second layer's result, and of the gradient of its first one's input. One to
        # agree whether to compare.
        ({"tensor": 2, "tensor_plan": _PLAN}, (0, 5)),
        # One says which gradients there are, one has them all.
        ({"data": 2}, (0, 2)),
        # Of each block three tensors and the result, there and back; the model's result; two for gradients;
        # one to agree whether to compare.
        ({"context": 2}, (0, 20)),
    ],
    ids=str,
)
def test_a_step_has_these_messages(options: Any, expected: tuple[int, int]) -> None:
    backend = Backend(partial(MeshParallelStrategy, **options), num_processes=2)
    assert backend.run(_count) == [expected] * 2
