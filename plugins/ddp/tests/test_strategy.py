"""core-ddp beyond averaged gradients, in two real processes over gloo."""

import sys
import warnings
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Fabric, LaunchError, Module, ModuleError, Trainer, WorkerError
from core.accelerators import MPSAccelerator
from core.strategies import DDPStrategy
from core_testing import Backend, programs
from core_testing.ranks import QUIET, end_kept_ranks
from core_testing.waiting import slowness

RANKS = Backend(DDPStrategy, num_processes=2, kept_for=__name__)
NEW_RANKS = Backend(DDPStrategy, num_processes=2)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def loader(batch_size):
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(16, 4, generator=generator)), batch_size=batch_size)


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


class Skipping(Net):
    """Returns no loss for some batches: a set of them for each rank."""

    def __init__(self, *skipped):
        super().__init__()
        self.skipped = skipped

    def training_step(self, batch, batch_idx):
        is_skipped = batch_idx in self.skipped[self.trainer.global_rank]
        return None if is_skipped else super().training_step(batch, batch_idx)


class WeighedOnRankOne(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "weight": 2} if self.trainer.global_rank == 1 else loss


def fit_on(rank, strategy, module, options):
    trainer = rank.trainer(strategy, **({"max_epochs": 1} | options))
    trainer.fit(module, loader(batch_size=4 // rank.backend.num_processes))
    return trainer.global_step, module.state_dict()


def fit(strategy="ddp", module=None, ranks=RANKS, **options):
    """The weights in the end."""
    return ranks.run(fit_on, strategy, module or Net(), options)[0][1]


def alone(module=None, **options):
    """The weights of one device."""
    module = module or Net()
    Trainer(accelerator="cpu", devices=1, **(QUIET | {"max_epochs": 1} | options)).fit(
        module, loader(batch_size=4)
    )
    return module.state_dict()


def test_an_option_that_we_have_chosen_gets_no_advice_of_torch(capfd):
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()

    fit(module=Manual(), ranks=NEW_RANKS)
    assert "find_unused_parameters" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)]
)
def test_the_caller_gets_tensors_as_rank_0_has_them_and_can_fit_again(precision, dtype):
    class Formatted(Net):
        """With a buffer that no state has, and a layer that is frozen when training has ended."""

        def __init__(self):
            super().__init__()
            self.register_buffer("offset", torch.zeros(1), persistent=False)

        def on_train_end(self):
            self.used.bias.requires_grad_(False)

    module = Formatted()
    options = QUIET | {
        "strategy": "ddp_fork",
        "devices": 2,
        "accelerator": "cpu",
        "precision": precision,
    }
    trainer = Trainer(**options, max_epochs=1)
    trainer.fit(module, loader(batch_size=2))
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = {"offset": torch.float32} if dtype == torch.bfloat16 else {}
    assert {name: tensor.dtype for name, tensor in tensors.items()} == dict.fromkeys(
        tensors, dtype
    ) | kept
    assert [name for name, tensor in tensors.items() if tensor.requires_grad] == ["used.weight"]
    after_one = module.used.weight.clone()
    assert not torch.equal(after_one, Net().used.weight.to(dtype))
    with pytest.warns(
        UserWarning, match="fit trains nothing: this Trainer has done 1 epochs and 4 steps before"
    ):
        trainer.fit(module, loader(batch_size=2))
    Trainer(**options, max_epochs=1).fit(module, loader(batch_size=2))
    assert not torch.equal(after_one, module.used.weight)


class FineTuned(Net):
    """Parameters of `frozen` train once `when(rank, epoch, batch_idx)`; the last is None between
    two epochs.
    """

    def __init__(self, when, frozen):
        super().__init__()
        self.when, self.frozen = when, frozen
        self.set_trained(False)

    def set_trained(self, is_trained):
        for name, parameter in self.named_parameters():
            if name.startswith(self.frozen):
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


def in_second_epoch(rank, epoch, batch_idx):
    return epoch == 1 and batch_idx is None


def in_second_epoch_of_rank_one(rank, epoch, batch_idx):
    return epoch == rank == 1


def between_steps(rank, epoch, batch_idx):
    return batch_idx == 2


def between_steps_of_rank_one(rank, epoch, batch_idx):
    return batch_idx == 2 and rank == 1


@pytest.mark.parametrize(
    ("kind", "names", "options"),
    [
        (FineTuned, "used.bias", {}),
        (FineTuned, "used.bias", {"static_graph": True}),
        (FineTuned, "used.weight", {"gradient_as_bucket_view": True}),
        (Frozen, "used.weight", {}),
        (Replaced, "used.weight", {}),
    ],
)
def test_what_changes_between_two_epochs_is_trained_as_on_one_device(kind, names, options):
    weights = fit(DDPStrategy(**options), kind(in_second_epoch, names), max_epochs=3)
    torch.testing.assert_close(weights, alone(kind(in_second_epoch, names), max_epochs=3))
    assert not torch.equal(weights[names], Net().get_parameter(names))


def test_wrapping_anew_leaves_the_buffers_of_ranks_as_they_are():
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

    weights = fit(module=WithOwnBuffer(), max_epochs=2)
    assert not torch.equal(weights["used.bias"], Net().used.bias), "it was not wrapped anew"


HOOK = {"ddp_comm_hook": default_hooks.allreduce_hook}
APART = "Ranks have frozen, unfrozen or replaced different parameters, this one (none|'used.bias')"


@pytest.mark.parametrize(
    ("kind", "when", "options", "message"),
    [
        (Frozen, between_steps, {}, "'used.bias' was frozen after DDP was set up"),
        (Frozen, in_second_epoch, HOOK, "'used.bias' was frozen after"),
        (Frozen, in_second_epoch_of_rank_one, {}, APART),
        (Replaced, between_steps, {}, "'used.(weight|bias)' gets gradients, and has c"),
        (
            FineTuned,
            between_steps,
            {},
            r"'used.bias' gets gradients, and was frozen.*Unfreeze it b",
        ),
        (FineTuned, between_steps_of_rank_one, {}, "^Rank 1 .*'used.bias' gets gradients, and was"),
        (FineTuned, in_second_epoch_of_rank_one, {}, APART),
        (FineTuned, in_second_epoch, HOOK, r"'used.bias' gets gradients.*ddp_comm_hook"),
    ],
)
def test_what_changes_where_ddp_waits_for_it_is_named(kind, when, options, message):
    with pytest.raises(WorkerError, match=message):
        fit(DDPStrategy(**options), kind(when, "used.bias"), NEW_RANKS, max_epochs=2)


def test_modules_that_differ_are_refused_and_what_is_unfrozen_in_a_loop_of_the_users_own():
    def differ_and_unfreeze(rank):
        fabric = rank.fabric()
        unlike = r"'weight', \(1, 4\) float32 on rank 0\n  'weight', \(2, 4\) float32 on rank 1"
        with pytest.raises(ModuleError, match=unlike):
            fabric.setup_module(nn.Linear(4, 1 + rank.number))
        module = nn.Linear(4, 1)
        module.bias.requires_grad_(False)
        model, batch = fabric.setup_module(module), torch.full((1, 4), float(rank.number))
        # gets no gradient, whenever it comes
        module.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        fabric.backward(model(batch).pow(2).sum())
        module.bias.requires_grad_(True)
        with pytest.raises(
            ConfigurationError,
            match=r"'bias' gets gradients.*call fabric.setup with your own module ag",
        ):
            fabric.backward(model(batch).pow(2).sum())
        module.zero_grad()
        fabric.backward(fabric.setup_module(module)(batch).pow(2).sum())
        gradients = fabric.all_gather(module.bias.grad)
        fabric.teardown()
        module(batch).pow(2).sum().backward()
        return gradients.tolist()

    first, second = RANKS.run(differ_and_unfreeze)[0]
    assert first == second != [0.0]


def test_unused_parameters_are_an_error_that_names_the_preset_unless_asked_for():
    message = (
        r"does not depend on 'unused.weight', 'unused.bias', .* "
        r"strategy='ddp_find_unused_parameters_true'"
    )
    with_frozen = Net(unused=True)
    with_frozen.used.bias.requires_grad_(False)  # torch counts those that are trained only
    with pytest.raises(WorkerError, match=message):
        fit(module=with_frozen, ranks=NEW_RANKS)

    class UnusedOnRankOne(Net):
        def training_step(self, batch, batch_idx):
            output = self.used(batch[0])
            return (
                (output + self.unused(batch[0]) if self.trainer.global_rank == 0 else output)
                .pow(2)
                .mean()
            )

    with pytest.raises(
        WorkerError, match=rf"^Rank 1 failed with .*ModuleError: The loss {message}"
    ):
        fit(module=UnusedOnRankOne(unused=True), ranks=NEW_RANKS)
    weights = fit("ddp_find_unused_parameters_true", Net(unused=True))
    torch.testing.assert_close(weights["used.weight"], alone()["used.weight"])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Skipping({}, {1}),
            r"^Rank 1 failed with .*ModuleError: Skipping.training_step returned None for batch 1 "
            r"of epoch 0 on rank 1, and not on rank 0: .* Skip a batch on all ranks, or return a "
            r"loss of zero with a graph, such as `0 \* l",
        ),
        (
            WeighedOnRankOne(),
            r"A loss has a weight on rank 1, and not on rank 0\. Give one on all ranks",
        ),
    ],
    ids=["none", "weight"],
)
def test_a_loss_that_one_rank_alone_has_is_named(module, message):
    with pytest.raises(WorkerError, match=message):
        fit(DDPStrategy(timeout=timedelta(seconds=6 * slowness())), module, NEW_RANKS)


def test_a_step_without_a_loss_on_all_ranks_is_skipped():
    with warnings.catch_warnings(action="ignore"):
        [(num_steps, _), _] = RANKS.run(fit_on, "ddp", Skipping({1, 2}, {1, 2}), {"max_epochs": 3})
    assert num_steps == 6


def test_options_reach_the_wrapper_and_the_group():
    options = {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 1}

    def wrapper_of(rank, strategy):
        fabric = rank.fabric(strategy)
        model, wrapper = fabric.setup(nn.Linear(4, 1)), fabric.strategy.model
        model(torch.ones(2, 4)).sum().backward()
        group = torch.distributed.distributed_c10d._get_default_group()
        timeout = group._get_backend(torch.device("cpu")).options._timeout
        return (
            type(wrapper),
            wrapper.static_graph,
            wrapper.gradient_as_bucket_view,
            wrapper.bucket_bytes_cap,
            timeout,
        )

    found = RANKS.run(wrapper_of, DDPStrategy(timeout=timedelta(seconds=77), **options))[0]
    assert found == (DistributedDataParallel, True, True, 1024 * 1024, timedelta(seconds=77))


def test_a_static_graph_accumulates_as_one_device_does():
    weights = fit(DDPStrategy(static_graph=True), accumulate_grad_batches=2)
    torch.testing.assert_close(weights, alone(accumulate_grad_batches=2))


def test_a_communication_hook_with_a_wrapper():
    hook = {
        "ddp_comm_hook": default_hooks.allreduce_hook,
        "ddp_comm_wrapper": default_hooks.fp16_compress_wrapper,
    }
    weights, expected = (
        fit(DDPStrategy(**hook, find_unused_parameters=True), ranks=NEW_RANKS),
        alone(),
    )
    torch.testing.assert_close(
        weights["used.weight"], expected["used.weight"], rtol=0.05, atol=0.01
    )
    assert not torch.equal(weights["used.weight"], expected["used.weight"])


def test_post_local_sgd_averages_moments_and_leaves_each_rank_the_number_of_its_steps():
    def post_local_sgd():
        state = post_localSGD_hook.PostLocalSGDState(
            None, None, 0, post_local_gradient_allreduce=False
        )
        hook = post_localSGD_hook.post_localSGD_hook
        return DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook, model_averaging_period=2)

    def average_moments(rank):
        """A rank whose gradients overflow under fp16 has taken fewer steps."""
        fabric, module = rank.fabric(post_local_sgd()), nn.Linear(2, 1, bias=False)
        _, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
        for step in range(4):
            module.weight.grad = torch.full((1, 2), (-1.0) ** (step * rank.number))
            optimizer.step()
        (moments,) = optimizer.state.values()
        moments["step"] -= rank.number
        before = fabric.all_gather(moments["exp_avg"])
        fabric.strategy.synchronize_model()
        return (
            before,
            fabric.all_gather(moments["exp_avg"]),
            fabric.all_gather(moments["step"]).tolist(),
        )

    before, after, steps = RANKS.run(average_moments)[0]
    assert not torch.equal(*before)
    assert torch.equal(*after)
    assert steps == [4, 3]


def test_an_overridden_configure_ddp():
    class CustomDDPStrategy(DDPStrategy):
        def configure_ddp(self):
            self.model = DistributedDataParallel(self.model, find_unused_parameters=True)

    weights = fit(CustomDDPStrategy(), Net(unused=True))
    torch.testing.assert_close(weights["used.weight"], alone()["used.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_averaging_period": 4}, "PostLocalSGDState"),
        ({"static_grph": True}, r"no option 'static_grph'\. Did you mean 'static_graph'"),
        ({"start_method": "popen"}, r"start_method='popen'.*'subprocess', 'spawn', 'fork'"),
        ({"ddp_comm_wrapper": default_hooks.fp16_compress_wrapper}, "ddp_comm_hook is None"),
    ],
)
def test_options_that_can_not_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        DDPStrategy(**options)


def test_the_backend_mpi_says_that_it_is_not_in_the_wheels():
    with pytest.raises(
        ConfigurationError, match=r"no backend 'mpi'.*'gloo'.*have no MPI.*built from source"
    ):
        Fabric(strategy=DDPStrategy(process_group_backend="mpi"), devices=2, accelerator="cpu")


def test_a_gpu_of_metal_is_refused_before_work():
    strategy = DDPStrategy(accelerator=MPSAccelerator(), parallel_devices=["mps:0"])
    with pytest.raises(
        ConfigurationError, match=r"DDPStrategy can't train on mps: .* Leave strategy out"
    ):
        strategy.check()


def test_a_backend_that_averages_is_asked_for_the_mean():
    def means_by_a_backend_that_averages(rank):
        """The means of a number, an integer and a large half, and what the backend was asked for.

        gloo stands in for NCCL, which is the one that takes `ReduceOp.AVG`.
        """
        fabric, asked = rank.fabric(), []
        fabric.barrier()

        def all_reduce(tensor, op, group):
            asked.append((op == ReduceOp.AVG, tensor.dtype))
            whole = tensor.double()
            torch.distributed.distributed_c10d._get_default_group().allreduce([whole]).wait()
            tensor.copy_(whole / 2 if op == ReduceOp.AVG else whole)

        values = [
            torch.tensor(1.0 + rank.number),
            torch.tensor(1 + rank.number),
            torch.tensor(4e4, dtype=torch.float16),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "get_backend", lambda group=None: "nccl")
            patch.setattr(torch.distributed, "all_reduce", all_reduce)
            means = [fabric.all_reduce(value).item() for value in values]
            means.append(fabric.all_reduce(values[0], reduce_op="sum").item())
        return means, asked

    means, asked = RANKS.run(means_by_a_backend_that_averages)[0]
    assert means == [1.5, 1.5, pytest.approx(4e4, rel=1e-3), 3.0]
    assert asked == [
        (True, torch.float32),
        (True, torch.float32),
        (True, torch.float16),
        (False, torch.float32),
    ]


def test_an_unknown_reduction_lists_those_that_exist():
    with pytest.raises(ConfigurationError, match="reduce_op='median': expected one of 'mean'"):
        DDPStrategy().reduce(torch.ones(1), reduce_op="median")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        HOOK,
    ],
    ids=lambda options: "".join(options) or "default",
)
def test_gradients_beside_sparse_ones_are_the_mean_of_all_ranks(options):
    class Summed(nn.Module):
        """A layer and a table whose outputs are added, so that both get the same gradient; either may
        be called first.
        """

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

    def farthest_from_the_mean(rank, strategy):
        fabric, differences = rank.fabric(strategy), []
        for order in (("dense", "table"), ("table", "dense")):
            alone, module = Summed(order), Summed(order)
            model = fabric.setup_module(module)
            for step in range(3):
                batches = [
                    torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + r))
                    for r in range(2)
                ]
                with fabric.no_backward_sync(model, enabled=step == 1):
                    fabric.backward(model(batches[rank.number]).square().mean(), model=model)
                own = batches if step != 1 else [batches[rank.number]] * 2
                sum(alone(each).square().mean() / 2 for each in own).backward()
                if (
                    step == 1
                ):  # what isn't exchanged is each rank's own, and is exchanged with the next
                    continue
                for name, parameter in module.named_parameters():
                    expected = fabric.all_reduce(alone.get_parameter(name).grad.to_dense())
                    differences.append((parameter.grad.to_dense() - expected).abs().max().item())
        return max(differences)

    assert max(RANKS.run(farthest_from_the_mean, DDPStrategy(**options))) < 1e-6


def test_nothing_to_train_needs_no_wrapper():
    def set_up_frozen(rank):
        fabric, module = rank.fabric(), nn.Linear(4, 1).requires_grad_(False)
        fabric.setup(module)
        return fabric.strategy.model is module

    assert RANKS.run(set_up_frozen) == [True, True]


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
