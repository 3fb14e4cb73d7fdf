"""What core-ddp does beyond averaging gradients, in two real processes over gloo."""

import sys
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # every optimizer imports it when it is made: here once, and not in each forked worker
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import core_ddp
from core import ConfigurationError, Fabric, LaunchError, Module, Trainer, WorkerError
from core.strategies import STRATEGY_REGISTRY, DDPStrategy

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False, "logger": False}


def loader(num_samples=16, batch_size=2):
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(num_samples, 4, generator=generator)), batch_size=batch_size)


class Net(Module):
    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(5)
        self.used = nn.Linear(4, 1)
        self.unused = nn.Linear(4, 1) if unused else None

    def training_step(self, batch, batch_idx):
        return self.used(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Gan(Module):
    """Two networks, two optimizers, two backwards in one step, each of which uses a part of the parameters."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.generator, self.discriminator = nn.Linear(4, 4), nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        generate, discriminate = self.optimizers()
        fake = self.generator(batch[0])
        loss = self.discriminator(fake.detach()).mean() - self.discriminator(batch[0]).mean()
        discriminate.zero_grad()
        self.manual_backward(loss)
        discriminate.step()
        generate.zero_grad()
        self.manual_backward(-self.discriminator(self.generator(batch[0])).pow(2).mean())
        generate.step()

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.generator.parameters(), lr=0.1),
            torch.optim.SGD(self.discriminator.parameters(), lr=0.1),
        ]


def fit(strategy, module=None, devices=2, **options):
    module = module or Net()
    trainer = Trainer(strategy=strategy, devices=devices, **(QUIET | {"max_epochs": 1} | options))
    trainer.fit(module, loader(batch_size=4 // devices))
    return trainer, module


def on_two_ranks(function, strategy="ddp_fork", **options):
    return Fabric(strategy=strategy, devices=2, accelerator="cpu", **options).launch(function)


def test_all_twelve_aliases_build_their_preset():
    aliases = [name for name in STRATEGY_REGISTRY.names() if STRATEGY_REGISTRY.spec(name).provider == "core-ddp"]
    assert len(aliases) == 12
    for alias in aliases:
        strategy = STRATEGY_REGISTRY.create(alias)
        assert isinstance(strategy, core_ddp.DDPStrategy)
        expected = {"true": True, "false": False}.get(alias.rpartition("_")[2])
        assert strategy.find_unused_parameters is expected
        start = next((name for name in ("spawn", "fork", "notebook") if name in alias), "subprocess")
        assert strategy.launcher_name == {"notebook": "fork"}.get(start, start)


def test_the_lazy_name_is_the_same_class():
    assert DDPStrategy is core_ddp.DDPStrategy


def test_the_caller_gets_weights_and_can_fit_again():
    module = Net()
    before = module.used.weight.clone()
    trainer, _ = fit("ddp_fork", module)
    after_one = module.used.weight.clone()
    assert not torch.equal(before, after_one)
    assert trainer.global_step == 4
    with pytest.warns(UserWarning, match="fit trains nothing: this Trainer has done 1 epochs and 4 steps before"):
        trainer.fit(module, loader())
    assert trainer.global_step == 4
    second = Trainer(strategy="ddp_fork", devices=2, max_epochs=1, **QUIET)
    second.fit(module, loader())
    assert not torch.equal(after_one, module.used.weight)


def test_unused_parameters_are_an_error_that_names_the_preset_unless_asked_for():
    message = r"does not depend on 'unused.weight', 'unused.bias', .* strategy='ddp_find_unused_parameters_true'"
    with pytest.raises(WorkerError, match=message):
        fit("ddp_fork", Net(unused=True))
    _, module = fit("ddp_fork_find_unused_parameters_true", Net(unused=True))
    _, single = fit("single_device", devices=1)
    torch.testing.assert_close(module.used.weight, single.used.weight)


def test_manual_optimization_with_two_backwards_equals_one_device():
    _, module = fit("ddp_fork", Gan())
    _, single = fit("single_device", Gan(), devices=1)
    for name, expected in single.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], expected, msg=name)


@pytest.mark.parametrize("option", [{"static_graph": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}])
def test_options_of_torch_reach_the_wrapper(option):
    def look(fabric):
        model = fabric.setup(nn.Linear(4, 1))
        wrapper = fabric.strategy.model
        name, value = next(iter(option.items()))
        model(torch.ones(2, 4)).sum().backward()
        return type(wrapper), getattr(wrapper, "bucket_bytes_cap" if name == "bucket_cap_mb" else name), value

    wrapper, found, wanted = on_two_ranks(look, DDPStrategy(start_method="fork", **option))
    assert wrapper is DistributedDataParallel
    assert found == (1024 * 1024 if "bucket_cap_mb" in option else wanted)


def test_a_communication_hook_with_a_wrapper():
    strategy = DDPStrategy(
        start_method="fork",
        ddp_comm_hook=default_hooks.allreduce_hook,
        ddp_comm_wrapper=default_hooks.fp16_compress_wrapper,
        find_unused_parameters=True,
    )
    _, module = fit(strategy)
    _, single = fit("single_device", devices=1)
    torch.testing.assert_close(module.used.weight, single.used.weight, rtol=0.05, atol=0.01)
    assert not torch.equal(module.used.weight, single.used.weight)


def test_post_local_sgd_averages_weights_every_period():
    module = nn.Linear(2, 1, bias=False)

    def run(fabric):
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        equal = []
        for _ in range(4):
            fabric.backward(model(torch.full((1, 2), 1.0 + fabric.global_rank)).sum())
            optimizer.step()
            optimizer.zero_grad()
            weights = fabric.all_gather(module.weight.detach())
            equal.append(torch.equal(weights[0], weights[1]))
        return equal

    def strategy():
        state = post_localSGD_hook.PostLocalSGDState(
            process_group=None, subgroup=None, start_localSGD_iter=0, post_local_gradient_allreduce=False
        )
        return DDPStrategy(
            start_method="fork",
            ddp_comm_state=state,
            ddp_comm_hook=post_localSGD_hook.post_localSGD_hook,
            model_averaging_period=2,
        )

    assert on_two_ranks(run, strategy()) == [True, False, True, False]


def test_model_averaging_without_local_steps_is_refused():
    with pytest.raises(ConfigurationError, match="PostLocalSGDState"):
        DDPStrategy(model_averaging_period=4)


def test_an_overridden_configure_ddp():
    class MyDistributedDataParallel(DistributedDataParallel):
        pass

    class CustomDDPStrategy(DDPStrategy):
        def configure_ddp(self):
            self.model = MyDistributedDataParallel(self.model, find_unused_parameters=True)

    strategy = CustomDDPStrategy(start_method="fork")
    _, module = fit(strategy)
    _, single = fit("single_device", devices=1)
    torch.testing.assert_close(module.used.weight, single.used.weight)


def test_a_misspelt_option_names_the_right_one():
    with pytest.raises(ConfigurationError, match=r"no option 'static_grph'\. Did you mean 'static_graph'"):
        DDPStrategy(static_grph=True)


def test_an_unknown_start_method_lists_those_that_exist():
    with pytest.raises(ConfigurationError, match=r"start_method='popen'.*'subprocess', 'spawn', 'fork'"):
        DDPStrategy(start_method="popen")


def test_a_wrapper_without_a_hook_is_refused():
    with pytest.raises(ConfigurationError, match="ddp_comm_hook is None"):
        DDPStrategy(ddp_comm_wrapper=default_hooks.fp16_compress_wrapper)


def test_the_backend_mpi_says_that_it_is_not_in_the_wheels():
    with pytest.raises(ConfigurationError, match=r"no backend 'mpi'.*'gloo'.*built from source with MPI"):
        Fabric(strategy=DDPStrategy(process_group_backend="mpi"), devices=2, accelerator="cpu")


def test_timeout_reaches_the_group():
    def look(fabric):
        group = torch.distributed.distributed_c10d._get_default_group()
        return group._get_backend(torch.device("cpu")).options._timeout

    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=77))
    assert on_two_ranks(look, strategy) == timedelta(seconds=77)


def test_collectives():
    def exchange(fabric):
        rank = fabric.global_rank
        return {
            "mean": fabric.strategy.reduce(torch.tensor([rank, rank + 1])).tolist(),
            "sum": fabric.strategy.all_reduce(torch.tensor([rank + 1]), reduce_op="sum").tolist(),
            "max": fabric.strategy.reduce(torch.tensor(float(rank)), reduce_op="max").item(),
            "gathered": fabric.strategy.all_gather(torch.full((2, 0), 1.0)).shape,
            "rows": fabric.strategy.all_gather(torch.tensor([[rank]])).tolist(),
            "object": fabric.strategy.broadcast({"from": rank}, src=1),
            "tensor": fabric.strategy.broadcast(torch.tensor(rank), src=1).item(),
            "any": fabric.strategy.reduce_boolean_decision(rank == 1, all=False),
            "all": fabric.strategy.reduce_boolean_decision(rank == 1),
            "objects": fabric.strategy.gather_objects((rank, "x")),
        }

    assert on_two_ranks(exchange) == {
        "mean": [0.5, 1.5],
        "sum": [3],
        "max": 1.0,
        "gathered": (2, 2, 0),
        "rows": [[[0]], [[1]]],
        "object": {"from": 1},
        "tensor": 1,
        "any": True,
        "all": False,
        "objects": [(0, "x"), (1, "x")],
    }


def test_gradients_flow_back_through_all_gather():
    def gather(fabric):
        own = torch.ones(2, requires_grad=True)
        (fabric.strategy.all_gather(own, sync_grads=True) * torch.tensor([[1.0], [10.0]])).sum().backward()
        return own.grad.tolist()

    assert on_two_ranks(gather) == [2.0, 2.0]


def test_an_unknown_reduction_lists_those_that_exist():
    with pytest.raises(ConfigurationError, match="reduce_op='median': expected one of 'mean'"):
        DDPStrategy().reduce(torch.ones(1), reduce_op="median")


def test_nothing_to_train_needs_no_wrapper():
    def evaluate(fabric):
        module = nn.Linear(4, 1).requires_grad_(False)
        fabric.setup(module)
        return fabric.strategy.model is module

    assert on_two_ranks(evaluate)


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_a_barrier_names_the_rank_that_does_not_come():
    def hang(fabric):
        if fabric.global_rank == 0:
            fabric.strategy.barrier("the end")

    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=3))
    with pytest.raises(Exception, match=r"(?s)[Rr]anks? 1"):
        on_two_ranks(hang, strategy)


def test_launching_from_a_prompt_names_the_notebook_alias(tmp_path):
    import subprocess

    code = "from core import Fabric; Fabric(strategy='ddp', devices=2, accelerator='cpu').launch()"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert finished.returncode == 1
    assert "ddp_notebook" in finished.stderr
    assert LaunchError.__name__ in finished.stderr
