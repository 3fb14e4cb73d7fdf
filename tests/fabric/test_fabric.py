import copy
import gc
import os
import random
import threading
import weakref
from concurrent.futures import wait
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from core import (
    Capability,
    ConfigurationError,
    Fabric,
    LaunchError,
    ModuleError,
    NonFiniteLossError,
    UnsupportedError,
)
from core.checkpoint import AsyncCheckpointIO, load_checkpoint
from core.fabric import FabricModule, FabricOptimizer, seed_everything
from core.strategies import SingleDeviceStrategy
from core_testing.waiting import wait_until
from support.small_nets import Recorder


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu")


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 1, dtype=torch.float64)


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), lr=0.1, **options)


# The loop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_before_gradients_come_of_it(value):
    fabric = Fabric(accelerator="cpu", devices=1, terminate_on_nan=True)
    model = fabric.setup(nn.Linear(2, 1))
    loss = model(torch.ones(2)).square().sum()
    with pytest.raises(
        NonFiniteLossError, match=f"fabric.backward was given a loss of {value}, and"
    ) as caught:
        fabric.backward(loss * value)
    assert model.weight.grad is None
    assert (caught.value.epoch, caught.value.global_step) == (None, None)
    fabric.backward(loss)
    assert model.weight.grad is not None


def test_a_loss_is_not_looked_at_unless_asked(monkeypatch):
    """A look would wait for the device."""
    monkeypatch.setattr("torch.isfinite", None)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = fabric.setup(nn.Linear(2, 1))
    fabric.backward(model(torch.ones(2)).sum() * float("nan"))
    assert model.weight.grad is not None


def test_launch_calls_a_function_with_this_fabric(fabric):
    assert fabric.launch(lambda self, a, *, b: (self is fabric, a, b), 1, b=2) == (True, 1, 2)
    assert fabric.launch() is None


def test_where_we_are(fabric):
    assert (fabric.world_size, fabric.global_rank, fabric.local_rank, fabric.node_rank) == (
        1,
        0,
        0,
        0,
    )
    assert fabric.is_global_zero
    assert fabric.device == torch.device("cpu")
    assert isinstance(fabric.strategy, SingleDeviceStrategy)
    assert "single_device" in fabric.resolution.summary


def test_a_model_without_fabric_goes_on_and_is_let_go():
    model = Fabric(accelerator="cpu").setup(linear())
    gc.collect()
    model.mark_forward_method("forward")
    assert model(torch.ones(1, 3).double()).shape == (1, 1)
    gone = weakref.ref(model.module)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("how", ["teardown", "error", "collected"])
def test_a_strategy_knows_whether_other_ranks_end_with_it(how):
    def end(fabric, how):
        if how == "teardown":
            fabric.teardown()
        elif how == "error":
            try:
                raise KeyError
            except KeyError:
                fabric.teardown()

    together = []

    class Gathering(SingleDeviceStrategy):
        def release(self):
            together.append(self.session.ends_together)
            super().release()

    fabric = Fabric(strategy=Gathering(), accelerator="cpu")
    fabric.setup(linear())
    end(fabric, how)
    del fabric
    await_collected(lambda: together)
    assert together[0] == (how == "teardown")


def test_a_forked_copy_lets_a_fabric_go_without_a_word():
    """A process that a library has forked collects its Fabric, and releases nothing that is another
    process's.
    """
    released = []

    class Noting(SingleDeviceStrategy):
        def release(self):
            released.append(os.getpid())
            super().release()

    fabric = Fabric(strategy=Noting(), accelerator="cpu")
    fabric.setup(linear())
    if (child := os.fork()) == 0:
        del fabric
        gc.collect()
        os._exit(len(released))
    assert os.waitpid(child, 0)[1] == 0
    del fabric
    await_collected(lambda: released)
    assert released[0] == os.getpid()


def test_nothing_outlives_a_fabric_that_nobody_has_any_more(tmp_path):
    """Each keeps a copy of what it has saved in the background, and a thread, of which 100 held 191
    MiB.
    """
    gone, num_threads = [], threading.active_count()
    for number in range(3):
        checkpoint_io = AsyncCheckpointIO()
        fabric = Fabric(accelerator="cpu", plugins=[checkpoint_io])
        fabric.save(tmp_path / f"{number}.ckpt", {"x": torch.ones(1000)})
        gone += [
            weakref.ref(part)
            for part in (fabric, fabric.strategy, checkpoint_io, checkpoint_io._stage)
        ]
        pending = [future for _, _, future in checkpoint_io._pending]
        del fabric, checkpoint_io
        wait(pending)
        assert load_checkpoint(tmp_path / f"{number}.ckpt")["x"].sum() == 1000, (
            "it finishes what was asked for"
        )
    await_collected(
        lambda: not any(part() for part in gone) and threading.active_count() <= num_threads
    )


def test_a_save_that_fails_after_its_fabric_is_gone_is_a_warning(tmp_path, monkeypatch):
    def save_and_forget(path):
        checkpoint_io = AsyncCheckpointIO()
        Fabric(accelerator="cpu", plugins=[checkpoint_io]).save(path, {"x": 1})
        gone = weakref.ref(checkpoint_io)
        checkpoint_io._wait()
        del checkpoint_io
        await_collected(lambda: gone() is None)

    monkeypatch.setattr("core.display.exit_code.fail", lambda: None)  # of this process
    (tmp_path / "file").write_text("")
    with pytest.warns(
        UserWarning,
        match=r"that was being written is lost: .*x.ckpt' can't be written: File exists",
    ):
        save_and_forget(tmp_path / "file" / "x.ckpt")


def await_collected(condition):
    """A worker thread lets go of what it has done a moment after it is done."""
    wait_until(lambda: gc.collect() >= 0 and condition(), "end of what nobody has any more")


def test_print_and_order_on_one_process(fabric, capsys):
    """Collectives: the kit's `test_one_process_is_alone`."""
    with fabric.rank_zero_first(), fabric.rank_zero_first(local=True):
        fabric.print("a", 1, sep="-")
    assert capsys.readouterr().out == "a-1\n"
    assert fabric.all_reduce({"loss": 2.0, "name": "x"}) == {"loss": torch.tensor(2.0), "name": "x"}


def test_init_module_and_init_tensor_use_the_precisions_format():
    fabric = Fabric(accelerator="cpu", precision="64-true")
    with fabric.init_module():
        assert nn.Linear(1, 1).weight.dtype == torch.float64
    with fabric.init_tensor():
        assert torch.ones(1).dtype == torch.float64
    assert torch.ones(1).dtype == torch.float32


def test_a_context_that_is_not_entered_changes_nothing():
    fabric = Fabric(accelerator="cpu", precision="64-true")
    before = torch._C._len_torch_function_stack()
    made = [fabric.init_module(), fabric.init_module(empty_init=True), fabric.init_tensor()]
    assert (torch._C._len_torch_function_stack(), torch.get_default_dtype()) == (
        before,
        torch.float32,
    )
    with made[1]:
        assert torch._C._len_torch_function_stack() == before + 2


def test_autocast_outside_of_a_module():
    with Fabric(accelerator="cpu", precision="bf16-mixed").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with Fabric(accelerator="cpu").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_to_device_returns_what_it_was_given(fabric):
    model = fabric.setup(linear())
    batch = {"x": torch.ones(1)}
    assert fabric.to_device(model) is model
    assert fabric.to_device(batch) is batch


def test_clipping_by_norm_and_by_value(fabric):
    def clipped(factor=1.0, **limits):
        """Clip gradients of three 4s and the bias' 1: what that returns, and the gradients."""
        module = linear()
        model, optimizer = fabric.setup(module, sgd(module))
        fabric.backward(model(torch.full((1, 3), 4.0).double()).sum() * factor)
        norm = fabric.clip_gradients(model, optimizer, **limits)
        return norm, torch.cat([parameter.grad.flatten() for parameter in module.parameters()])

    norm, gradients = clipped(max_norm=1.0)
    assert (norm.item(), gradients.norm().item()) == (
        pytest.approx(7.0),
        pytest.approx(1.0, abs=1e-5),
    )
    assert clipped(max_norm=2.0, norm_type=float("inf"))[0].item() == 4.0
    none, gradients = clipped(clip_val=0.5)
    assert (none, gradients.tolist()) == (None, [0.5] * 4)
    with pytest.raises(RuntimeError, match="non-finite"):
        clipped(float("nan"), max_norm=1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("limits", [{}, {"clip_val": 1.0, "max_norm": 2.0}])
def test_clipping_needs_one_limit(fabric, limits):
    module = linear()
    model, optimizer = fabric.setup(module, sgd(module))
    with pytest.raises(
        ConfigurationError, match=r"clip_val=.* and max_norm=.*; pass one of the two"
    ):
        fabric.clip_gradients(model, optimizer, **limits)


def test_several_modules_and_optimizers(fabric):
    one, two = linear(), linear()
    optimizers = torch.optim.SGD([one.weight], lr=0.1), torch.optim.SGD([one.bias], lr=0.2)
    model_1, *wrapped = fabric.setup(one, *optimizers)
    model_2 = fabric.setup_module(two)
    wrapped.append(fabric.setup_optimizers(sgd(two)))
    assert {type(model_1), type(model_2)} == {FabricModule}
    assert list(map(type, wrapped)) == [FabricOptimizer] * 3


def test_a_scheduler_comes_back_last(fabric):
    module = linear()
    optimizer = sgd(module)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert fabric.setup(module, optimizer, scheduler=scheduler)[2] is scheduler


# Loaders ------------------------------------------------------------------------------------------


def batches(loader):
    return [batch.tolist() for batch in loader]


def test_every_iteration_is_an_epoch_also_a_broken_one(fabric):
    loader = fabric.setup_dataloaders(DataLoader(range(20), batch_size=4, shuffle=True))
    first, broken, last = batches(loader), next(iter(loader)).tolist(), batches(loader)
    assert len({str(first[0]), str(broken), str(last[0])}) == 3
    assert sorted(chain(*last)) == list(range(20))
    assert (len(loader), loader.batch_size, loader.epoch) == (5, 4, 3)


@pytest.mark.parametrize("generator", [None, torch.Generator()])
@pytest.mark.parametrize("num_taken", [5, 2])
def test_an_epoch_can_be_read_again(fabric, num_taken, generator):
    loader = fabric.setup_dataloaders(
        DataLoader(range(20), batch_size=4, shuffle=True, generator=generator)
    )
    first = batches(islice(loader, num_taken))
    for _ in range(2):
        loader.set_epoch(0)
        again = batches(loader)
        assert again[:num_taken] == first
        assert sorted(chain(*again)) == list(range(20))


def test_telling_the_epoch_of_a_loaded_state_goes_on_within_it(fabric):
    loader = fabric.setup_dataloaders(DataLoader(range(20), batch_size=4))
    batches(islice(loader, 2))
    resumed = fabric.setup_dataloaders(DataLoader(range(20), batch_size=4))
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(0)
    assert batches(resumed) == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def test_two_loaders_of_one_length_are_shuffled_apart(fabric):
    one, two = fabric.setup_dataloaders(
        *(DataLoader(range(20), batch_size=4, shuffle=True) for _ in range(2))
    )
    assert batches(one) != batches(two)


def test_the_order_follows_from_the_seed():
    def order(seed):
        fabric = Fabric(accelerator="cpu")
        fabric.seed_everything(seed)
        torch.rand(seed)
        return batches(fabric.setup_dataloaders(DataLoader(range(20), batch_size=4, shuffle=True)))

    assert order(1) == order(1) != order(2)


def test_an_iterable_data_set_and_other_iterables(fabric):
    class Stream(IterableDataset):
        epoch = 0

        def __iter__(self):
            return iter([self.epoch, 10 + self.epoch])

        def set_epoch(self, epoch):
            self.epoch = epoch

    loader = fabric.setup_dataloaders(DataLoader(Stream(), batch_size=2))
    assert batches(loader) + batches(loader) == [[0, 10], [1, 11]]
    assert list(fabric.setup_dataloaders(["a", "b"])) == ["a", "b"]


def test_samplers_can_be_left_alone(fabric):
    own = DataLoader(range(4), sampler=RandomSampler(range(4)))
    assert fabric.setup_dataloaders(own, use_distributed_sampler=False).loader is own


def test_a_state_of_another_kind_of_loader_is_refused(fabric):
    loader = fabric.setup_dataloaders(DataLoader(range(4)))
    state = fabric.setup_dataloaders([1, 2]).state_dict()
    with pytest.raises(
        Exception,
        match=r"goes on from 'epoch' and 'sampler'; the checkpoint has \['epoch', 'loader'\]",
    ):
        loader.load_state_dict(state)


# Callbacks and loggers ----------------------------------------------------------------------------


def test_values_reach_every_logger():
    one, two = Recorder(), Recorder()
    fabric = Fabric(accelerator="cpu", loggers=[one, two])
    fabric.log("loss", torch.tensor([0.5]), step=3)
    fabric.log_dict({"a": 1, "b": np.float32(0.25)})
    fabric.log("loss", 0.25)
    assert (
        one.rows
        == two.rows
        == [(3, {"loss": 0.5}), (0, {"a": 1.0, "b": 0.25}), (1, {"loss": 0.25})]
    )
    assert fabric.logger is one


@pytest.mark.parametrize(
    ("value", "what"), [(torch.ones(2), r"a tensor of shape \(2,\)"), ("0.5", "str '0.5'")]
)
def test_only_numbers_can_be_logged(value, what):
    fabric = Fabric(accelerator="cpu", loggers=Recorder())
    with pytest.raises(
        ConfigurationError, match=rf"log\('loss'\): expected a number .*, got {what}"
    ):
        fabric.log("loss", value)


def test_there_may_be_no_logger(fabric):
    fabric.log("loss", torch.ones(2))


def test_a_logger_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fabric = Fabric(accelerator="cpu", loggers="csv")
    fabric.log("loss", 1.0, step=0)
    fabric.logger.save()
    assert any("loss" in file.read_text() for file in tmp_path.rglob("*.csv"))


def test_callbacks_are_called_by_name():
    class Greets:
        greeting = "not a method"

        def __init__(self):
            self.heard = []

        def on_hello(self, *args, **kwargs):
            self.heard.append((args, kwargs))

    one, two = Greets(), Greets()
    fabric = Fabric(accelerator="cpu", callbacks=[one, object(), two])
    fabric.call("on_hello", 1, a=2)
    fabric.call("greeting")
    fabric.call("on_nothing")
    assert one.heard == two.heard == [((1,), {"a": 2})]


# Seeds --------------------------------------------------------------------------------------------


def test_seed_everything_seeds_all_generators(fabric):
    def draw(seed):
        assert fabric.seed_everything(seed, per_rank=seed == 3) == seed
        return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw(3) == draw(3) != draw(4)


@pytest.mark.parametrize("seed", [-1, 2**32, "4", None, 0.5])
def test_a_seed_is_an_integer_with_bounds(fabric, seed):
    for call in (seed_everything, lambda seed: fabric.seed_everything(seed, per_rank=True)):
        with pytest.raises(ConfigurationError, match=r"expected an integer from 0 to 2\*\*32 - 1"):
            call(seed)


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "error", "told"),
    [
        (
            lambda fabric, module: fabric.setup(fabric.setup(module)),
            ModuleError,
            r"this Linear was set up already. Pass the module that you made, and once only",
        ),
        (
            lambda fabric, module: fabric.setup(sgd(module)),
            ModuleError,
            r"expected an nn.Module first, got SGD",
        ),
        (
            lambda fabric, module: fabric.setup(module, [sgd(module)]),
            ConfigurationError,
            r"Expected a torch.optim.Optimizer, got list. .*argument of its own",
        ),
        (
            lambda fabric, module: fabric.setup_optimizers(fabric.setup(module, sgd(module))[1]),
            ConfigurationError,
            "This SGD was set up already",
        ),
        (
            lambda fabric, _: fabric.setup_dataloaders(3),
            ConfigurationError,
            "int can't be iterated over",
        ),
        (lambda fabric, _: fabric.setup_dataloaders(None), ConfigurationError, "NoneType can't be"),
        (
            lambda fabric, _: fabric.setup_dataloaders(fabric.setup_dataloaders([1])),
            ConfigurationError,
            r"FabricDataLoader was set up already. Pass your own DataLoader",
        ),
        (
            lambda fabric, module: fabric.no_backward_sync(module),
            ConfigurationError,
            r"Linear was not set up .*call fabric.setup\(module\) first",
        ),
        (
            lambda fabric, _: fabric.launch(3),
            LaunchError,
            r"fabric.launch\(3\): expected a function, which gets this Fabric as its first",
        ),
        (
            lambda fabric, _: fabric.logger,
            ConfigurationError,
            r"no logger. Pass one, as in Fabric\(loggers='csv'\)",
        ),
    ],
)
def test_a_mistake_is_told(fabric, mistake, error, told):
    with pytest.raises(error, match=told):
        mistake(fabric, linear())


def test_an_optimizer_of_another_module_is_refused(fabric):
    net, other = linear(), linear()
    shared = torch.optim.SGD([other.bias, net.bias], lr=0.1)
    with pytest.raises(
        ConfigurationError,
        match=r"SGD has none of the param.*\(Linear\).*Make it from the parameters",
    ):
        fabric.setup(net, sgd(other))
    fabric.setup(other)
    fabric.setup_optimizers(sgd(other))
    fabric.setup(copy.deepcopy(net), shared)  # one of `other`'s is enough
    with pytest.raises(ConfigurationError, match="the module was copied or replaced since"):
        fabric.setup_optimizers(sgd(linear()))


def test_a_strategy_that_sets_up_everything_together():
    class Joint(SingleDeviceStrategy):
        @property
        def capabilities(self):
            return (super().capabilities | Capability.JOINT_SETUP) & ~Capability.SEVERAL_MODULES

        def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
            return (
                self.setup_module(module),
                [self.setup_optimizer(each) for each in optimizers],
                scheduler,
            )

    fabric = Fabric(accelerator="cpu", strategy=Joint())
    module = linear()
    with pytest.raises(
        UnsupportedError, match=r"use model, optimizer = fabric.setup\(model, optimizer\)"
    ) as raised:
        fabric.setup_optimizers(sgd(module))
    assert raised.value.capability == Capability.JOINT_SETUP
    with pytest.raises(ConfigurationError, match="SGD has none of the parameters"):
        fabric.setup(module, sgd(linear()))
    model, optimizer = fabric.setup(module, sgd(module))
    fabric.backward(model(torch.ones(1, 3).double()).sum())
    optimizer.step()


def test_parameters_of_no_module_are_told_where_ranks_train_them_apart(fabric, monkeypatch):
    module, temperature = linear(), torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)
    optimizer = torch.optim.SGD([*module.parameters(), temperature, frozen], lr=0.1)
    fabric.setup(module)
    monkeypatch.setattr(type(fabric.strategy), "world_size", 2)
    with pytest.warns(
        UserWarning,
        match=r"SGD has 1 parameter\(s\) of no module .* \(of shape \(3,\)\)\. Each rank",
    ):
        added = fabric.setup_optimizers(optimizer)
    with pytest.warns(UserWarning, match=r"of no module .* \(of shape \(7,\)\)\. Each rank"):
        added.add_param_group({"params": [torch.nn.Parameter(torch.ones(7))]})
    module.layer = torch.nn.Linear(1, 1)
    added.add_param_group({"params": [*module.layer.parameters()]})
    assert len(optimizer.param_groups) == 3
