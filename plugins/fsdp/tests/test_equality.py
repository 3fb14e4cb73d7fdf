"""Losses and whole weights of 20 steps under every way to shard equal those of one device."""

import functools

import pytest
import torch

from core_fsdp import FSDPStrategy, ModelParallelStrategy
from core_testing import Backend
from core_testing.ranks import end_kept_ranks
from support.sharded_training import CASES, NUM_STEPS, Block, train, train_on

pytestmark = pytest.mark.numbers

# Relative to the largest weight. Averaging parts rounds more often than one whole does.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}

fork = functools.partial(FSDPStrategy, start_method="fork", auto_wrap_policy={Block})
fork_parallel = functools.partial(
    ModelParallelStrategy, start_method="fork", auto_wrap_policy={Block}
)

WAYS = {
    "full": (fork, 2, 2),
    "one_unit": (functools.partial(fork, auto_wrap_policy=None), 2, 2),
    "grad_op": (functools.partial(fork, sharding_strategy="SHARD_GRAD_OP"), 2, 2),
    "no_shard": (functools.partial(fork, sharding_strategy="NO_SHARD"), 2, 2),
    "tensor": (functools.partial(fork_parallel, tensor_parallel_size=2), 2, 1),
    "hybrid": (functools.partial(fork, sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2)), 4, 4),
    "data_tensor": (
        functools.partial(fork_parallel, tensor_parallel_size=2, data_parallel_size=2),
        4,
        2,
    ),
}
# "full" has every case; the others, which share nearly all calls with it, the cases in which
# gradients are reduced, counted or stored in another way: a norm over ranks, a sum over batches, a
# weight with two places, and for DTensors optimizers that look at them. On four ranks the norm is
# over two dimensions. In one unit the kit trains the others.
KEPT = {
    "full": tuple(CASES),
    "one_unit": ("foreach", "meta"),
    "grad_op": ("clipped", "accumulated", "tied"),
    "no_shard": ("clipped", "accumulated", "tied"),
    "tensor": ("clipped", "clipped_by_value", "accumulated", "tied", "foreach", "muon", "meta"),
    "hybrid": ("clipped",),
    "data_tensor": ("clipped",),
}
QUICK = {
    "full": (
        "plain",
        "accumulated",
        "clipped_by_value",
        "fabric_accumulated",
        "frozen",
        "meta",
        "recurrent",
    ),
    "tensor": ("accumulated", "tied"),
}


def marks_of(way, case):
    return () if case in QUICK.get(way, ()) else pytest.mark.slow


@functools.cache
def reference(case):
    return train(CASES[case])


@functools.lru_cache(maxsize=1)
def ranks_of(way):
    """Kept for all cases of the way, which come one after the other. As a fixture they would end
    after each.
    """
    end_kept_ranks()
    make, num_processes, data_parallel_size = WAYS[way]
    return Backend(make, "cpu", num_processes, data_parallel_size, timeout_s=120, kept_for=way)


@pytest.fixture(scope="module", autouse=True)
def no_ranks_left():
    yield
    ranks_of.cache_clear()
    end_kept_ranks()


@pytest.mark.parametrize(
    ("way", "case"),
    [
        pytest.param(way, case, marks=marks_of(way, case))
        for way, cases in KEPT.items()
        for case in cases
    ],
)
def test_losses_and_weights_equal_one_device(way, case):
    ranks = ranks_of(way)
    losses, weights = ranks.run(train_on, case, ranks.data_parallel_size)[0]
    expected_losses, expected_weights = reference(case)
    tolerance = TOLERANCE[CASES[case].dtype]
    scale = max(
        value.abs().max().item() for value in expected_weights.values() if value.is_floating_point()
    )
    assert len(losses) == NUM_STEPS
    assert expected_losses[-1] < expected_losses[0], "it trains"
    assert losses == pytest.approx(expected_losses, rel=tolerance * 10)
    assert weights.keys() == expected_weights.keys()
    for name, expected in expected_weights.items():
        assert weights[name].dtype == expected.dtype, name
        assert (weights[name] - expected).abs().max().item() <= tolerance * scale, name
