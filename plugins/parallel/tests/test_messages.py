"""Messages of a step, counted as its benchmark counts them: no more than the layout needs."""

import runpy
from functools import cache

import pytest
from torch import nn

from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend
from support.checkout import in_checkout

_BENCHMARK = in_checkout("benchmarks/parallel.py")
_PLAN = {
    f"{block}.{name}": word
    for block in (1, 2)
    for name, word in {"up": "colwise", "down": "rowwise"}.items()
}


_EXPECTED = {
    # Each microbatch crosses once forward and once back; all ranks get the loss.
    "schedule": ({"pipeline": 2, "schedule": "1F1B", "microbatches": 4}, (4, 1)),
    # The model's result comes to all ranks: two for its form, one for its numbers.
    "pipeline": ({"pipeline": 2, "microbatches": 4}, (4, 3)),
    # Of each block, the sum of its second layer's result, and of the gradient of its first one's
    # input.
    "tensor": ({"tensor": 2, "tensor_plan": _PLAN}, (0, 4)),
    # One says which gradients there are, one has them all.
    "data": ({"data": 2}, (0, 2)),
    # Of each block three tensors and the result, there and back; the model's result; two for
    # gradients.
    "context": ({"context": 2}, (0, 19)),
}


def _count(rank):
    """Sends and collectives of this rank in a step after the first ones, by the layout."""
    found = runpy.run_path(str(_BENCHMARK))
    found["make_parts"].__globals__.update(WIDTH=16, NUM_BLOCKS=2, BATCH=8)
    counts = {}
    for name, (options, _) in _EXPECTED.items():
        fabric, module = (
            rank.fabric(MeshParallelStrategy(**options)),
            nn.Sequential(*found["make_parts"]()),
        )
        model, optimizer = fabric.setup(module, found["adam"](module))
        batch = found["make_batch"](is_divided=False)
        for _ in range(3):
            with found["Counted"]() as counted:
                fabric.step(model, batch, found["compute_loss"])
                optimizer.step()
        counts[name] = counted.sends, counted.collectives
        fabric.teardown()
    return counts


@cache
def counts():
    """Those of each rank, of one group for all layouts."""
    return Backend(MeshParallelStrategy, num_processes=2).run(_count)


@pytest.mark.parametrize("name", _EXPECTED)
def test_a_step_has_these_messages(name):
    assert [of_rank[name] for of_rank in counts()] == [_EXPECTED[name][1]] * 2
