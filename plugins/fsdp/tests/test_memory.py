"""The memory of a rank: half of the model with two ranks, and never the whole one if that is built on meta."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from core import Fabric
from core_fsdp import FSDPStrategy, ModelParallelStrategy

WIDTH, NUM_LAYERS = 64, 8
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def build():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held_bytes(fabric):
    """Of parameters, gradients and optimizer state after a step."""
    module = build()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    fabric.backward(model(torch.randn(2, WIDTH)).pow(2).mean())
    optimizer.step()
    tensors = [tensor for parameter in module.parameters() for tensor in (parameter, parameter.grad)]
    tensors += [value for entry in optimizer.state.values() for value in entry.values()]
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())  # gradients may share one


def run(function, strategy):
    return Fabric(strategy=strategy, devices=2, accelerator="cpu").launch(function)


@pytest.mark.parametrize("sharding", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_a_rank_holds_half_of_what_a_replica_does(sharding):
    replica = run(held_bytes, "ddp_fork")
    strategy = FSDPStrategy(start_method="fork", auto_wrap_policy={nn.Linear}, sharding_strategy=sharding)
    assert run(held_bytes, strategy) == pytest.approx(replica / 2, rel=0.1)
    assert replica > 4 * NUM_LAYERS * LAYER_BYTES * 0.99


class Allocations(TorchDispatchMode):
    """The most bytes that new tensors have held at one time."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        import weakref

        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, DTensor) or not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
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
    assert all(value.isfinite().all() and value.abs().sum() > 0 for value in values if value.numel())
    return allocations.peak, sum(value.untyped_storage().nbytes() for value in values)


@pytest.mark.parametrize("make", [FSDPStrategy, ModelParallelStrategy])
def test_no_rank_holds_the_whole_model_that_was_built_on_meta(make):
    options = {"data_parallel_size": 2} if make is ModelParallelStrategy else {}
    peak, held = run(setup_on_meta, make(start_method="fork", auto_wrap_policy={nn.Linear}, **options))
    assert held == NUM_LAYERS * LAYER_BYTES // 2
    assert held <= peak <= held + 3 * LAYER_BYTES  # the shards, and one layer with what drawing it takes


@pytest.mark.parametrize("synchronizes", [True, False])
def test_ranks_that_built_differently_begin_with_the_weights_of_rank_zero(synchronizes):
    def setup(fabric):
        torch.manual_seed(fabric.global_rank)
        module = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        module[1].running_mean += fabric.global_rank
        fabric.setup(module)
        whole = fabric.strategy.get_module_state_dict(module, layout="full")
        return whole, fabric.strategy.gather_objects(module[1].running_mean.tolist())

    def built(seed):
        torch.manual_seed(seed)
        return nn.Linear(2, 4).weight

    whole, means = run(setup, FSDPStrategy(start_method="fork", sync_module_states=synchronizes))
    expected = built(0) if synchronizes else torch.cat([built(0)[:2], built(1)[2:]])  # each rank its own shard
    assert torch.equal(whole["0.weight"], expected)
    assert means == [[0.0] * 4, [0.0 if synchronizes else 1.0] * 4]


def test_values_of_rank_zero_reach_ranks_that_built_on_meta():
    def setup(fabric):
        torch.manual_seed(fabric.global_rank)
        with torch.device("cpu" if fabric.global_rank == 0 else "meta"):
            module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
        module[1].running_mean += 3  # nothing shards it
        expected = [value.clone() for value in module.state_dict().values()] if fabric.global_rank == 0 else None
        fabric.setup(module)
        whole = fabric.strategy.get_module_state_dict(module, layout="full")
        means = fabric.strategy.gather_objects(module[1].running_mean.tolist())
        return means, expected is None or all(map(torch.equal, whole.values(), expected))

    assert run(setup, FSDPStrategy(start_method="fork")) == ([[3.0] * 5] * 2, True)


def test_what_cannot_fill_itself_holds_nan_and_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

    def setup(fabric):
        with fabric.init_module(empty_init=True):
            module = nn.Sequential(nn.Linear(4, 4), Scale())
        with pytest.warns(UserWarning, match=r"no reset_parameters\(\) that could give them values: 1\. They hold NaN"):
            fabric.setup(module)
        return bool(local(module[1].factor).isnan().all()), bool(local(module[0].weight).isfinite().all())

    assert run(setup, FSDPStrategy(start_method="fork")) == (True, True)


def test_unseeded_ranks_draw_the_same_and_keep_their_own_random_state():
    def setup(fabric):
        torch.manual_seed(100 + fabric.global_rank)
        with fabric.init_module(empty_init=True):
            module = nn.Linear(4, 4)
        fabric.setup(module)
        weight = fabric.strategy.get_module_state_dict(module, layout="full").get("weight")
        draw = torch.rand(1).item()
        return weight, fabric.strategy.gather_objects(draw)

    weight, draws = run(setup, FSDPStrategy(start_method="fork", sharding_strategy="NO_SHARD"))
    torch.manual_seed(100)
    assert torch.equal(weight, nn.Linear(4, 4).weight)
    torch.manual_seed(101)
    assert draws[1] == torch.rand(1).item()
