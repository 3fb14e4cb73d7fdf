"""The memory of a rank: half of the model with two ranks, and never the whole one if that is built
on meta.
"""

import functools
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from core_fsdp import FSDPStrategy, ModelParallelStrategy
from core_testing import Backend
from core_testing.ranks import end_kept_ranks

WIDTH, NUM_LAYERS = 64, 8
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def build():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def call(rank, function, strategy, args):
    return function(rank.fabric(strategy), *args)


def run(function, strategy="fsdp", *args):
    """What it returns on rank 0."""
    return Backend("fsdp", num_processes=2, kept_for=__name__).run(call, function, strategy, args)[
        0
    ]


@pytest.mark.parametrize("sharding", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_a_rank_holds_half_of_what_a_replica_does(sharding):
    strategy = FSDPStrategy(auto_wrap_policy={nn.Linear}, sharding_strategy=sharding)

    def held_bytes(fabric):
        """Of parameters, gradients and optimizer state after a step."""
        module = build()
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
        fabric.backward(model(torch.randn(2, WIDTH)).pow(2).mean())
        optimizer.step()
        tensors = [
            tensor for parameter in module.parameters() for tensor in (parameter, parameter.grad)
        ]
        tensors += [value for entry in optimizer.state.values() for value in entry.values()]
        storages = [local(tensor).untyped_storage() for tensor in tensors]
        # gradients may share one
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    assert run(held_bytes, strategy) == pytest.approx(4 * NUM_LAYERS * LAYER_BYTES / 2, rel=0.1)


@pytest.mark.parametrize(
    "make", [FSDPStrategy, functools.partial(ModelParallelStrategy, data_parallel_size=2)]
)
def test_no_rank_holds_the_whole_model_that_was_built_on_meta(make):
    class Allocations(TorchDispatchMode):
        """The most bytes that new tensors have held at one time."""

        def __init__(self):
            super().__init__()
            self.alive, self.now, self.peak = {}, 0, 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            for tensor in output if isinstance(output, tuple | list) else (output,):
                if (
                    isinstance(tensor, DTensor)
                    or not isinstance(tensor, torch.Tensor)
                    or tensor.device.type == "meta"
                ):
                    continue
                storage = tensor.untyped_storage()
                if storage._cdata not in self.alive:
                    self.alive[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, storage._cdata)
            return output

        def _gone(self, key):
            self.now -= self.alive.pop(key, 0)

    def setup_on_meta(fabric):
        with fabric.init_module(empty_init=True):
            module = build()
        assert all(parameter.is_meta for parameter in module.parameters())
        with Allocations() as allocations:
            fabric.setup(module)
        values = [local(parameter) for parameter in module.parameters()]
        assert all(
            value.isfinite().all() and value.abs().sum() > 0 for value in values if value.numel()
        )
        return allocations.peak, sum(value.untyped_storage().nbytes() for value in values)

    peak, held = run(setup_on_meta, make(auto_wrap_policy={nn.Linear}))
    assert held == NUM_LAYERS * LAYER_BYTES // 2
    # the shards, and one layer with what drawing it takes
    assert held <= peak <= held + 3 * LAYER_BYTES


@pytest.mark.parametrize(
    ("devices", "synchronizes"), [(("cpu", "cpu"), False), (("cpu", "meta"), True)]
)
def test_ranks_that_built_differently_begin_with_the_weights_of_rank_zero(devices, synchronizes):
    def build_on(fabric, devices):
        """Whole weights and running means of ranks that each draw their own, on these devices."""
        torch.manual_seed(fabric.global_rank)
        with torch.device(devices[fabric.global_rank]):
            module = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        module[1].running_mean += fabric.global_rank + 1  # nothing shards it
        fabric.setup(module)
        whole = fabric.strategy.get_module_state_dict(module, layout="full")
        return whole, fabric.strategy.gather_objects(module[1].running_mean.tolist())

    whole, means = run(build_on, FSDPStrategy(sync_module_states=synchronizes), devices)
    built = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        built.append(nn.Linear(2, 4).weight)
    # each rank its own shard
    expected = built[0] if synchronizes else torch.cat([built[0][:2], built[1][2:]])
    assert torch.equal(whole["0.weight"], expected)
    assert means == [[1.0] * 4, [1.0 if synchronizes else 2.0] * 4]


def test_what_cannot_fill_itself_holds_nan_and_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

    def fill_on_meta(fabric):
        with fabric.init_module(empty_init=True):
            module = nn.Sequential(nn.Linear(4, 4), Scale())
        with pytest.warns(
            UserWarning,
            match=r"no reset_parameters\(\) that could give them values: 1\. They hold NaN",
        ):
            fabric.setup(module)
        return bool(local(module[1].factor).isnan().all()), bool(
            local(module[0].weight).isfinite().all()
        )

    assert run(fill_on_meta) == (True, True)


def test_unseeded_ranks_draw_the_same_and_keep_their_own_random_state():
    def draw_on_meta(fabric):
        torch.manual_seed(100 + fabric.global_rank)
        with fabric.init_module(empty_init=True):
            module = nn.Linear(4, 4)
        fabric.setup(module)
        weight = fabric.strategy.get_module_state_dict(module, layout="full").get("weight")
        return weight, fabric.strategy.gather_objects(torch.rand(1).item())

    weight, draws = run(draw_on_meta, FSDPStrategy(sharding_strategy="NO_SHARD"))
    torch.manual_seed(100)
    assert torch.equal(weight, nn.Linear(4, 4).weight)
    torch.manual_seed(101)
    assert draws[1] == torch.rand(1).item()
