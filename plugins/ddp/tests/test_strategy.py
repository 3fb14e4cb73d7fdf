"""core-ddp beyond averaged gradients, in two real processes over gloo."""

import sys
import warnings
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # every optimizer imports it when it is made: here once, and not in each forked worker
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import core_ddp
from core import ConfigurationError, Fabric, LaunchError, Module, ModuleError, Trainer, WorkerError
from core.accelerators import MPSAccelerator
from core.strategies import STRATEGY_REGISTRY, DDPStrategy
from core_testing import programs

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


class UnusedOnRankOne(Net):
    def training_step(self, batch, batch_idx):
        output = self.used(batch[0])
        return (output + self.unused(batch[0]) if self.trainer.global_rank == 0 else output).pow(2).mean()


class Skipping(Net):
    """Returns no loss for some batches: a set of them for each rank."""

    def __init__(self, *skipped):
        super().__init__()
        self.skipped = skipped

    def training_step(self, batch, batch_idx):
        is_skipped = batch_idx in self.skipped[self.trainer.global_rank]
        return None if is_skipped else super().training_step(batch, batch_idx)


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


class UsesAll(Gan):
    def training_step(self, batch, batch_idx):
        self.manual_backward(self.discriminator(self.generator(batch[0])).mean())
        for optimizer in self.optimizers():
            optimizer.step()


def test_an_option_that_we_have_chosen_gets_no_advice_of_torch(capfd):
    fit("ddp_fork", UsesAll())
    assert "find_unused_parameters" not in capfd.readouterr().err


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


class Formatted(Net):
    """With a buffer that no state has, and a layer that is frozen when training has ended."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(1), persistent=False)

    def on_train_end(self):
        self.used.bias.requires_grad_(False)


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)])
def test_the_caller_gets_tensors_as_rank_0_has_them(precision, dtype):
    _, module = fit("ddp_fork", Formatted(), precision=precision)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = {"offset": torch.float32} if dtype == torch.bfloat16 else {}
    assert {name: tensor.dtype for name, tensor in tensors.items()} == dict.fromkeys(tensors, dtype) | kept
    assert [name for name, tensor in tensors.items() if tensor.requires_grad] == ["used.weight"]


class FineTuned(Net):
    """Parameters of `frozen` train once `when(rank, epoch, batch_idx)`; the last is None between two epochs."""

    def __init__(self, when, frozen):
        super().__init__()
        self.when = when
        self.frozen = [parameter for name, parameter in self.named_parameters() if name.startswith(frozen)]
        self.set_trained(False)

    def set_trained(self, is_trained):
        for parameter in self.frozen:
            parameter.requires_grad_(is_trained)

    def on_train_epoch_start(self):
        if self.when(self.global_rank, self.current_epoch, None):
            self.set_trained(True)

    def on_train_batch_start(self, batch, batch_idx):
        if self.when(self.global_rank, self.current_epoch, batch_idx):
            self.set_trained(True)

    def on_train_end(self):
        weights = torch.cat([parameter.detach().flatten() for parameter in self.parameters()])
        first, last = self.all_gather(weights).reshape(-1, len(weights))[[0, -1]]
        assert torch.equal(first, last), f"ranks have drifted apart by {(first - last).abs().max()}"


def in_second_epoch(rank, epoch, batch_idx):
    return epoch == 1 and batch_idx is None


@pytest.mark.parametrize(
    ("frozen", "options"),
    [("used.bias", {}), ("used.bias", {"static_graph": True}), ("used.weight", {"gradient_as_bucket_view": True})],
    ids=["bias", "static graph", "bucket view"],
)
def test_what_is_unfrozen_between_two_epochs_is_trained_as_on_one_device(frozen, options):
    strategy = DDPStrategy(start_method="fork", **options)
    _, module = fit(strategy, FineTuned(in_second_epoch, frozen), max_epochs=3)
    _, single = fit("single_device", FineTuned(in_second_epoch, frozen), devices=1, max_epochs=3)
    for name, expected in single.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], expected, msg=name)
    trained = module.get_parameter(frozen)
    assert not torch.equal(trained, Net().get_parameter(frozen))
    assert trained.requires_grad


class WithOwnBuffer(FineTuned):
    """Has a buffer in which each rank has put another value when the second epoch begins."""

    def __init__(self):
        super().__init__(in_second_epoch, "used.bias")
        self.register_buffer("own", torch.zeros(1))

    def on_train_epoch_start(self):
        super().on_train_epoch_start()
        self.own.fill_(self.global_rank)

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 0:  # the first forward sends the buffers of rank 0
            assert self.own.item() == self.global_rank


def test_wrapping_anew_leaves_the_buffers_of_ranks_as_they_are():
    _, module = fit("ddp_fork", WithOwnBuffer(), max_epochs=2)
    assert not torch.equal(module.used.bias, Net().used.bias), "it was not wrapped anew"


class Frozen(FineTuned):
    """The other way round: they are trained until then."""

    def __init__(self, when, frozen):
        super().__init__(when, frozen)
        super().set_trained(True)

    def set_trained(self, is_trained):
        super().set_trained(not is_trained)


class Replaced(FineTuned):
    """The layer is another one from then on, which each rank has begun with other weights."""

    def set_trained(self, is_trained):
        if is_trained:
            torch.manual_seed(self.global_rank)
            self.used = nn.Linear(4, 1)
            self.optimizers().param_groups[0]["params"] = list(self.used.parameters())


@pytest.mark.parametrize(("kind", "devices"), [(Frozen, 2), (Replaced, 2), (Frozen, 1)])
def test_what_is_frozen_or_replaced_between_two_epochs_is_left_and_trained_as_on_one_device(kind, devices):
    _, module = fit("ddp_fork", kind(in_second_epoch, "used.weight"), devices=devices, max_epochs=3)
    _, single = fit("single_device", kind(in_second_epoch, "used.weight"), devices=1, max_epochs=3)
    for name, expected in single.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], expected, msg=name)


@pytest.mark.parametrize(
    ("kind", "when", "options", "message"),
    [
        (Frozen, lambda rank, epoch, batch_idx: batch_idx == 2, {}, "'used.bias' was frozen after DDP was set up"),
        (Frozen, in_second_epoch, {"ddp_comm_hook": default_hooks.allreduce_hook}, "'used.bias' was frozen after"),
        (Replaced, lambda rank, epoch, batch_idx: batch_idx == 2, {}, "'used.(weight|bias)' gets gradients, and has c"),
        (Frozen, lambda rank, epoch, batch_idx: epoch == rank == 1, {}, "Ranks have frozen, unfrozen or replaced diff"),
    ],
)
def test_what_is_frozen_or_replaced_where_ddp_waits_for_it_is_named(kind, when, options, message):
    with pytest.raises(WorkerError, match=message):
        fit(DDPStrategy(start_method="fork", **options), kind(when, "used.bias"), max_epochs=2)


@pytest.mark.parametrize(
    ("when", "options", "message"),
    [
        (
            lambda rank, epoch, batch_idx: batch_idx == 2,
            {},
            r"'used.bias' gets gradients, and was frozen.*Unfreeze it b",
        ),
        (
            lambda rank, epoch, batch_idx: batch_idx == 2 and rank == 1,
            {},
            "^Rank 1 .*'used.bias' gets gradients, and was",
        ),
        (
            lambda rank, epoch, batch_idx: epoch == rank == 1,
            {},
            "Ranks have frozen, unfrozen or replaced different parameters, this one (none|'used.bias')",
        ),
        (
            in_second_epoch,
            {"ddp_comm_hook": default_hooks.allreduce_hook},
            r"'used.bias' gets gradients.*ddp_comm_hook",
        ),
    ],
    ids=["between two steps", "on one rank between two steps", "on one rank", "with a communication hook"],
)
def test_what_can_not_be_averaged_is_refused_by_name(when, options, message):
    with pytest.raises(WorkerError, match=message):
        fit(DDPStrategy(start_method="fork", **options), FineTuned(when, "used.bias"), max_epochs=2)


def test_modules_that_differ_are_refused_and_what_is_unfrozen_in_a_loop_of_the_users_own():
    def train(fabric):
        unlike = r"'weight': \(1, 4\) float32 on rank 0; \(2, 4\) float32 on rank 1\n  'bias': "
        with pytest.raises(ModuleError, match=unlike):
            fabric.setup_module(nn.Linear(4, 1 + fabric.global_rank))
        module = nn.Linear(4, 1)
        module.bias.requires_grad_(False)
        model, batch = fabric.setup_module(module), torch.full((1, 4), float(fabric.global_rank))
        module.scale = nn.Parameter(torch.ones(1), requires_grad=False)  # gets no gradient, whenever it comes
        fabric.backward(model(batch).pow(2).sum())
        module.bias.requires_grad_(True)
        with pytest.raises(
            ConfigurationError, match=r"'bias' gets gradients.*call fabric.setup with your own module ag"
        ):
            fabric.backward(model(batch).pow(2).sum())
        module.zero_grad()
        fabric.backward(fabric.setup_module(module)(batch).pow(2).sum())
        gradients = fabric.all_gather(module.bias.grad)
        fabric.teardown()
        module(batch).pow(2).sum().backward()
        return gradients.tolist()

    first, second = on_two_ranks(train)
    assert first == second != [0.0]


def test_unused_parameters_are_an_error_that_names_the_preset_unless_asked_for():
    message = r"does not depend on 'unused.weight', 'unused.bias', .* strategy='ddp_find_unused_parameters_true'"
    with_frozen = Net(unused=True)
    with_frozen.used.bias.requires_grad_(False)  # torch counts those that are trained only
    with pytest.raises(WorkerError, match=message):
        fit("ddp_fork", with_frozen)
    with pytest.raises(WorkerError, match=rf"^Rank 1 failed with .*ModuleError: The loss {message}"):
        fit("ddp_fork", UnusedOnRankOne(unused=True))
    _, module = fit("ddp_fork_find_unused_parameters_true", Net(unused=True))
    _, single = fit("single_device", devices=1)
    torch.testing.assert_close(module.used.weight, single.used.weight)


def test_a_step_without_a_loss_on_one_rank_alone_is_named_and_on_all_is_skipped():
    message = (
        r"^Rank 1 failed with .*ModuleError: Skipping.training_step returned None for batch 1 of epoch 0 on rank 1, "
        r"and not on rank 0: .* Skip a batch on all ranks, or return a loss of zero with a graph, such as `0 \* loss`"
    )
    with pytest.raises(WorkerError, match=message):
        fit(DDPStrategy(start_method="fork", timeout=timedelta(seconds=30)), Skipping({}, {1}))
    with warnings.catch_warnings(action="ignore"):
        trainer, _ = fit("ddp_fork", Skipping({1, 2}, {1, 2}), max_epochs=3)
    assert trainer.global_step == 6


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


def test_a_static_graph_accumulates_as_one_device_does():
    _, module = fit(DDPStrategy(start_method="fork", static_graph=True), accumulate_grad_batches=2)
    _, single = fit("single_device", devices=1, accumulate_grad_batches=2)
    torch.testing.assert_close(module.state_dict(), single.state_dict())


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
            equal.append(torch.equal(*fabric.all_gather(module.weight.detach())))
        fabric.strategy.synchronize_model()
        return [*equal, torch.equal(*fabric.all_gather(module.weight.detach()))]

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

    assert on_two_ranks(run, strategy()) == [True, False, True, False, True]


def test_post_local_sgd_averages_moments_and_leaves_each_rank_the_number_of_its_steps():
    """A rank whose gradients overflow under fp16 has taken fewer of them."""
    module = nn.Linear(2, 1, bias=False)

    def run(fabric):
        _, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
        for step in range(4):
            module.weight.grad = torch.full((1, 2), (-1.0) ** (step * fabric.global_rank))
            optimizer.step()
        (moments,) = optimizer.state.values()
        moments["step"] -= fabric.global_rank
        before = fabric.all_gather(moments["exp_avg"])
        fabric.strategy.synchronize_model()
        return before, fabric.all_gather(moments["exp_avg"]), fabric.all_gather(moments["step"]).tolist()

    state = post_localSGD_hook.PostLocalSGDState(None, None, 0, post_local_gradient_allreduce=False)
    hook = post_localSGD_hook.post_localSGD_hook
    before, after, steps = on_two_ranks(
        run, DDPStrategy(start_method="fork", ddp_comm_state=state, ddp_comm_hook=hook, model_averaging_period=2)
    )
    assert not torch.equal(*before)
    assert torch.equal(*after)
    assert steps == [4, 3]


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


def test_a_gpu_of_metal_is_refused_before_work():
    strategy = DDPStrategy(accelerator=MPSAccelerator(), parallel_devices=["mps:0"])
    with pytest.raises(ConfigurationError, match=r"DDPStrategy can't train on mps: .* Leave strategy out"):
        strategy.check()


def test_timeout_reaches_the_group():
    def look(fabric):
        group = torch.distributed.distributed_c10d._get_default_group()
        return group._get_backend(torch.device("cpu")).options._timeout

    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=77))
    assert on_two_ranks(look, strategy) == timedelta(seconds=77)


def means_by_a_backend_that_averages(fabric):
    """The means of a number, an integer and a large half, and what the backend was asked for.

    gloo stands in for NCCL, which is the one that takes `ReduceOp.AVG`.
    """
    asked = []

    def all_reduce(tensor, op, group):
        asked.append((op, tensor.dtype))
        whole = tensor.double()
        torch.distributed.distributed_c10d._get_default_group().allreduce([whole]).wait()
        tensor.copy_(whole / 2 if op == ReduceOp.AVG else whole)

    values = [torch.tensor(1.0 + fabric.global_rank), torch.tensor(1 + fabric.global_rank)]
    values += [torch.tensor(4e4, dtype=torch.float16)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_backend", lambda group=None: "nccl")
        patch.setattr(torch.distributed, "all_reduce", all_reduce)
        means = [fabric.all_reduce(value).item() for value in values]
        means.append(fabric.all_reduce(values[0], reduce_op="sum").item())
    return means, [(op == ReduceOp.AVG, str(dtype)) for op, dtype in asked]


def test_a_backend_that_averages_is_asked_for_the_mean():
    means, asked = on_two_ranks(means_by_a_backend_that_averages, DDPStrategy(start_method="fork"))
    assert means == [1.5, 1.5, pytest.approx(4e4, rel=1e-3), 3.0]
    floats = [(True, "torch.float32"), (True, "torch.float32"), (True, "torch.float16")]
    assert asked == [*floats, (False, "torch.float32")]


def test_an_unknown_reduction_lists_those_that_exist():
    with pytest.raises(ConfigurationError, match="reduce_op='median': expected one of 'mean'"):
        DDPStrategy().reduce(torch.ones(1), reduce_op="median")


class Summed(nn.Module):
    """A layer and a table whose outputs are added, so that both get the same gradient; either may be called first."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(3)
        self.order = order
        for name in order:
            part = nn.Embedding(6, 3, sparse=True) if name == "table" else nn.Linear(4, 3)
            self.add_module(name, part)

    def forward(self, x):
        inputs = {"dense": x, "table": (x[:, 0].abs() * 10).long() % 6}
        return sum(getattr(self, name)(inputs[name]) for name in self.order)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"ddp_comm_hook": default_hooks.allreduce_hook},
    ],
    ids=lambda options: "".join(options) or "default",
)
def test_gradients_beside_sparse_ones_are_the_mean_of_all_ranks(options):
    def compare(fabric):
        differences = []
        for order in (("dense", "table"), ("table", "dense")):
            alone, module = Summed(order), Summed(order)
            model = fabric.setup_module(module)
            for step in range(3):
                batches = [torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(2)]
                with fabric.no_backward_sync(model, enabled=step == 1):
                    fabric.backward(model(batches[fabric.global_rank]).square().mean(), model=model)
                own = batches if step != 1 else [batches[fabric.global_rank]] * 2
                sum(alone(each).square().mean() / 2 for each in own).backward()
                if step == 1:  # what isn't exchanged is each rank's own, and is exchanged with the next
                    continue
                for name, parameter in module.named_parameters():
                    expected = fabric.all_reduce(alone.get_parameter(name).grad.to_dense())
                    differences.append((parameter.grad.to_dense() - expected).abs().max().item())
        return max(differences)

    assert on_two_ranks(compare, DDPStrategy(start_method="fork", **options)) < 1e-6


def test_nothing_to_train_needs_no_wrapper():
    def evaluate(fabric):
        module = nn.Linear(4, 1).requires_grad_(False)
        fabric.setup(module)
        return fabric.strategy.model is module

    assert on_two_ranks(evaluate)


def test_launching_from_a_prompt_names_the_notebook_alias(tmp_path):
    code = "from core import Fabric; Fabric(strategy='ddp', devices=2, accelerator='cpu').launch()"
    finished = programs.run([sys.executable, "-c", code], cwd=tmp_path)
    assert finished.returncode == 1
    assert "ddp_notebook" in finished.stderr
    assert LaunchError.__name__ in finished.stderr


def test_options_of_torchs_wrapper_are_described():
    done = programs.run([*programs.CORE, "describe", "ddp"])
    assert "gradient_as_bucket_view = False" in done.stdout
    assert "static_graph = False" in done.stdout
    assert "process_group " not in done.stdout, "the strategy's own"


class Stack(nn.Module):
    """Blocks with dropout, one of which may be left out."""

    def __init__(self, leaves_out):
        super().__init__()
        torch.manual_seed(3)
        layers = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)) for _ in range(3))
        self.blocks = nn.ModuleList(layers)
        self.leaves_out = leaves_out

    def forward(self, x):
        for block in self.blocks[: 2 if self.leaves_out else 3]:
            x = block(x)
        return x


@pytest.mark.numbers
@pytest.mark.parametrize(
    "options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=["plain", "static", "unused"]
)
def test_checkpointed_activations_change_no_bit(options):
    def train(fabric):
        module = Stack("find_unused_parameters" in options)
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        torch.manual_seed(fabric.global_rank)
        for _ in range(3):
            fabric.backward(model(torch.rand(5, 4)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
        return fabric.strategy.gather_objects([value.tolist() for value in module.parameters()])

    plain, checkpointed = (
        on_two_ranks(train, DDPStrategy(start_method="fork", **options), activation_checkpointing=chosen)
        for chosen in (None, "units")
    )
    assert checkpointed == plain
    assert plain[0] == plain[1]


class WeighedOnRankOne(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "weight": 2} if self.trainer.global_rank == 1 else loss


def test_a_weight_on_one_rank_alone_is_an_error_that_names_the_others():
    with pytest.raises(WorkerError, match=r"A loss has a weight on rank 1, and not on rank 0\. Give one on all ranks"):
        fit(DDPStrategy(start_method="fork", timeout=timedelta(seconds=30)), WeighedOnRankOne())
