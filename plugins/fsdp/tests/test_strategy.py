"""core-fsdp beyond equal numbers: options, units, steps of every kind, in real processes over gloo."""

import functools
import random
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.fsdp import (
    CPUOffload,
    FSDPModule,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

import core_fsdp
from core import (
    Callback,
    Capability,
    CombinedLoader,
    ConfigurationError,
    Fabric,
    Module,
    ModuleError,
    Trainer,
    WorkerError,
)
from core.strategies import STRATEGY_REGISTRY, FSDPStrategy, ModelParallelStrategy
from core_fsdp.wrapping import choose_modules
from core_testing import programs
from support.printed import lines_of
from support.sharded_training import CASES, QUIET, Block, Net
from support.small_nets import Net as SmallNet

COMMON = (
    Capability.COLLECTIVES
    | Capability.NO_SYNC
    | Capability.SHARDED_STATE
    | Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
    | Capability.SEVERAL_OPTIMIZERS
    | Capability.CLIP_BY_VALUE
    | Capability.WEIGHTED_LOSSES
    | Capability.BIT_EXACT_RESUME
)


def on_two_ranks(function, strategy=None, devices=2, **options):
    strategy = strategy or FSDPStrategy(start_method="fork")
    return Fabric(strategy=strategy, devices=devices, accelerator="cpu", **options).launch(function)


def fit(strategy, module, devices=2, **options):
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(16, 4, generator=generator)
    shares = 1 if isinstance(strategy, ModelParallelStrategy) else devices
    loader = DataLoader(TensorDataset(samples), batch_size=4 // shares)
    Trainer(**{**QUIET, "max_epochs": 2, **options}, strategy=strategy, devices=devices).fit(module, loader, loader)
    return module


def test_aliases_and_lazy_names_are_the_package_own():
    assert FSDPStrategy is core_fsdp.FSDPStrategy
    assert ModelParallelStrategy is core_fsdp.ModelParallelStrategy
    assert not STRATEGY_REGISTRY.create("fsdp").cpu_offload
    assert STRATEGY_REGISTRY.create("fsdp_cpu_offload").cpu_offload
    assert isinstance(STRATEGY_REGISTRY.create("model_parallel"), ModelParallelStrategy)


@pytest.mark.parametrize(
    "strategy", [FSDPStrategy(), FSDPStrategy(sharding_strategy="NO_SHARD"), ModelParallelStrategy()]
)
def test_declared_capabilities(strategy):
    assert strategy.capabilities == COMMON


def test_objects_of_the_old_wrapper_mean_what_they_meant():
    strategy = FSDPStrategy(
        cpu_offload=CPUOffload(offload_params=True),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float16
        ),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        state_dict_type=StateDictType.SHARDED_STATE_DICT,
        use_orig_params=True,
        limit_all_gathers=True,
    )
    assert strategy.cpu_offload
    assert strategy.mixed_precision == MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    assert strategy.sharding.name == "SHARD_GRAD_OP"
    assert strategy.state_dict_type == "sharded"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_all_gathers": False}, "forward_prefetch=True gathers one unit earlier"),
        ({"backward_prefetch": 1}, "no option 'backward_prefetch' any more: FSDP2 always"),
        ({"param_init_fn": print}, "reset_parameters"),
        ({"ignored_states": []}, "neither cuts nor reduces what it ignores, so that each rank would train such a"),
        ({"ignored_params": set()}, "Keep it outside of the module that you train"),
        ({"auto_wrap": None}, "Did you mean 'auto_wrap_policy'"),
        ({"sharding_strategy": "ZERO"}, "expected one of 'FULL_SHARD'"),
        ({"state_dict_type": StateDictType.LOCAL_STATE_DICT}, "every number of processes can load"),
        ({"state_dict_type": "whole"}, "expected 'full' or 'sharded'"),
        ({"mixed_precision": "bf16"}, "pass precision='bf16-mixed'"),
        ({"mixed_precision": MixedPrecision(keep_low_precision_grads=True)}, "precision='bf16-true'"),
        ({"cpu_offload": "yes"}, "expected True, False"),
        ({"start_method": "thread"}, "expected one of 'subprocess'"),
    ],
)
def test_an_option_without_meaning_is_refused_with_the_reason(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FSDPStrategy(**options)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attention, self.mixer = SelfAttention(2, 1), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.mixer(inputs)


class SelfAttention(nn.MultiheadAttention):
    pass


def test_transformer_layers_are_found_where_nobody_names_their_class():
    layers = nn.ModuleDict({"blocks": nn.ModuleList([Layer(), Layer()]), "head": nn.Sequential(nn.Linear(2, 2))})
    chosen = choose_modules(layers, transformer_auto_wrap_policy, "auto_wrap_policy")
    assert [type(layer) for layer in chosen] == [Layer, Layer]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            transformer_auto_wrap_policy,
            r"and needs 'transformer_layer_cls' too, and Sequential has no list of layers with attention in which to "
            r"find it\. Bind it: functools\.partial\(transformer_auto_wrap_policy, transformer_layer_cls=\{Transf",
        ),
        (lambda_auto_wrap_policy, r"lambda_auto_wrap_policy is called with module, recurse, .*needs 'lambda_fn' too\."),
    ],
)
def test_a_policy_that_needs_more_than_it_is_called_with(policy, message):
    with pytest.raises(ConfigurationError, match=message):
        choose_modules(nn.Sequential(nn.Linear(2, 2)), policy, "auto_wrap_policy")


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(3, 2)), {}, r"whose product is the number .*, 4"),
        (
            ModelParallelStrategy(tensor_parallel_size=3),
            {},
            "'auto' and tensor_parallel_size=3 make 1 x 3 = 3 processes, ",
        ),
        (FSDPStrategy(mixed_precision=MixedPrecisionPolicy(torch.bfloat16)), {"precision": "bf16-mixed"}, "Keep one"),
        (FSDPStrategy(state_dict_type="sharded"), {"plugins": "torch"}, "TorchCheckpointIO stores the full form"),
        (FSDPStrategy(), {"precision": "16-mixed"}, "Use precision='bf16-mixed'"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_process_starts(strategy, options, message):
    with pytest.raises(ConfigurationError, match=message):
        Fabric(strategy=strategy, devices=4, accelerator="cpu", **options)


def test_model_parallel_refuses_what_needs_a_third_axis():
    with pytest.raises(ConfigurationError, match="use sharding_strategy='FULL_SHARD' or 'SHARD_GRAD_OP'"):
        ModelParallelStrategy(sharding_strategy="HYBRID_SHARD")
    with pytest.raises(ConfigurationError, match="tensor_parallel_size=0: expected a positive number"):
        ModelParallelStrategy(tensor_parallel_size=0)


@pytest.mark.parametrize(
    "policy",
    [
        {Block},
        ModuleWrapPolicy({Block}),
        CustomPolicy(lambda module: isinstance(module, Block)),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        functools.partial(size_based_auto_wrap_policy, min_num_params=100),
        lambda module: isinstance(module, Block),
    ],
    ids=["classes", "ModuleWrapPolicy", "CustomPolicy", "transformer", "size", "predicate"],
)
def test_every_form_of_policy_selects_units(policy):
    def units(fabric):
        module = Net(CASES["tied"])
        fabric.setup(module)
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]

    assert on_two_ranks(units, FSDPStrategy(start_method="fork", auto_wrap_policy=policy)) == [
        "",
        "blocks.0",
        "blocks.1",
    ]


@pytest.mark.parametrize(
    ("make", "case", "expected"),
    [
        (FSDPStrategy, "tied", ["", "blocks.0", "blocks.1"]),
        (functools.partial(FSDPStrategy, auto_wrap_policy=None), "tied", [""]),
        (functools.partial(ModelParallelStrategy, data_parallel_size=2), "tied", [""]),
    ],
    ids=["fsdp", "None", "model_parallel"],
)
def test_the_repeated_blocks_are_the_units_unless_told_otherwise(make, case, expected):
    def units(fabric):
        module = Net(CASES[case])
        fabric.setup(module)
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]

    assert on_two_ranks(units, make(start_method="fork")) == expected


@pytest.mark.parametrize("way", ["layers of a block", "penalty"])
def test_parameters_used_outside_of_their_unit(way):
    class Own(nn.Sequential):
        def forward(self, x):
            if way == "layers of a block":
                return self[0].up(x)
            return super().forward(x).pow(2).mean() + sum(one.pow(2).sum() for one in self.parameters())

    def step(fabric):
        fabric.backward(fabric.setup(Own(Block(), Block()))(torch.ones(1, 6)).sum())

    with pytest.raises(WorkerError, match=r"(?s)where its unit isn't gathered .*by auto_wrap_policy=None"):
        on_two_ranks(step)


def test_the_policy_can_be_decided_by_the_module():
    class ByModule(FSDPStrategy):
        def configure_fsdp_auto_wrap_policy(self, module):
            return {type(module.blocks[0])}

    def num_units(fabric):
        module = Net(CASES["plain"])
        fabric.setup(module)
        return sum(isinstance(part, FSDPModule) for part in module.modules())

    assert on_two_ranks(num_units, ByModule(start_method="fork")) == 3


def test_a_policy_that_selects_nothing_lists_what_is_there():
    with pytest.raises(WorkerError, match="auto_wrap_policy selects no module of Net: it holds Block, Embedding"):
        on_two_ranks(
            lambda fabric: fabric.setup(Net(CASES["plain"])),
            FSDPStrategy(start_method="fork", auto_wrap_policy={nn.Conv2d}),
        )


def test_tied_units_are_gathered_together():
    """A layer that shares its weight with one outside of it can't be a unit by itself."""

    def units(fabric):
        module = Net(CASES["tied"])
        fabric.setup(module)
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]

    policy = {nn.Embedding, Block}
    assert on_two_ranks(units, FSDPStrategy(start_method="fork", auto_wrap_policy=policy)) == [
        "",
        "blocks.0",
        "blocks.1",
    ]


class Holding(nn.Module):
    """A layer, and what can't be sharded beside it."""

    def __init__(self, **parts):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))


UNFIT = {
    "'scale' of Holding is a parameter of shape (), which has no dimension": {"scale": torch.tensor(1.0)},
    "'none' of Holding is a parameter of shape (0, 4), which has no element": {"none": torch.empty(0, 4)},
    "'eye' of Holding is a parameter of layout torch.sparse_coo, which can't": {"eye": torch.eye(4).to_sparse()},
    "'words' of Holding is Embedding(sparse=True), whose": {"words": nn.Embedding(8, 4, sparse=True)},
    "'bag' of Holding is EmbeddingBag(sparse=True), whose": {"bag": nn.EmbeddingBag(8, 4, sparse=True)},
    "'phase' of Holding is torch.complex64, and 'layer.weight' is torch.float32: the": {
        "phase": torch.ones(4, dtype=torch.complex64)
    },
    "'layer.weight' of Holding is torch.float32, and 'other.weight' is torch.float64: the": {
        "other": nn.Linear(4, 4).double()
    },
}


def test_what_cannot_be_sharded_is_named():
    def refusals(fabric):
        found = []
        for parts in UNFIT.values():
            try:
                fabric.setup(Holding(**parts))
            except ModuleError as error:
                found.append(str(error))
        return found

    found = on_two_ranks(refusals)
    assert len(found) == len(UNFIT)
    for message, begin in zip(found, UNFIT, strict=True):
        assert message.startswith(begin)


def test_units_of_a_format_each():
    def train(fabric):
        torch.manual_seed(0)
        turn = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64))
        module = Holding(turn=turn)
        module.forward = lambda inputs: module.turn(module.layer(inputs).to(torch.complex64)).abs().square().mean()
        module, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for _ in range(3):
            fabric.backward(loss := module(torch.linspace(-1, 1, 8).view(2, 4)))
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    sharded = on_two_ranks(train, FSDPStrategy(start_method="fork", auto_wrap_policy={nn.Sequential}))
    assert sharded == pytest.approx(on_two_ranks(train, "auto", devices=1))


class Planned(nn.Module):
    """A model in the manner of transformers, whose plan frees the embedding after use."""

    _fsdp_plan = {"embed": "free_full_weight", "blocks.*": "free_full_weight", "head": "keep_full_weight"}

    def __init__(self, is_tied):
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_plan_of_transformers_names_units_beside_blocks():
    def train(fabric, is_tied):
        torch.manual_seed(0)
        net = Planned(is_tied)
        module, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(3):
            fabric.backward(loss := module(torch.arange(4).view(2, 2)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return loss.item(), [isinstance(one, FSDPModule) for one in (net.embed, net.blocks[0], net.head)]

    for is_tied, is_unit in ((False, [True, True, False]), (True, [False, True, False])):
        loss, found = on_two_ranks(functools.partial(train, is_tied=is_tied))
        assert found == is_unit
        assert loss == pytest.approx(on_two_ranks(functools.partial(train, is_tied=is_tied), "auto", devices=1)[0])


def test_optimizers_that_do_not_work_element_by_element():
    def refusals(fabric):
        found = []
        for make in (torch.optim.LBFGS, torch.optim.Adafactor):
            module = nn.Linear(4, 4)
            try:
                module, optimizer = fabric.setup(module, make(module.parameters()))
                fabric.backward(module(torch.ones(2, 4)).sum())
                optimizer.step()
            except ConfigurationError as error:
                found.append(str(error))
        return found

    lbfgs, adafactor = on_two_ranks(refusals)
    assert lbfgs.startswith("LBFGS can't step parameters in shards: it makes one vector of all parameters. Use an")
    assert adafactor.startswith("Adafactor can't step parameters in shards: it looks at whole rows and columns. Use an")
    assert "such as AdamW or SGD, or a strategy that keeps parameters whole, such as ddp." in adafactor


def test_an_optimizer_that_keeps_its_list_of_parameters():
    class Keeping(torch.optim.SGD):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.kept = self.param_groups[0]["params"]

    def holds_shards(fabric):
        module = nn.Linear(4, 4)
        _, optimizer = fabric.setup(module, Keeping(module.parameters(), lr=0.1))
        return [isinstance(each, DTensor) for each in optimizer.optimizer.kept]

    assert on_two_ranks(holds_shards) == [True, True]


def test_an_optimizer_made_before_goes_on_with_its_state():
    def train(fabric):
        torch.manual_seed(0)
        module = nn.Linear(4, 3).double()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        module(torch.ones(2, 4, dtype=torch.float64)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model, stepped = fabric.setup(module, optimizer)
        fabric.backward(model(torch.ones(2, 4, dtype=torch.float64)).pow(2).sum())
        stepped.step()
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert all(mine is own for mine, own in zip(held, module.parameters(), strict=True))
        weight = fabric.strategy.get_module_state_dict(module, layout="full").get("weight")
        return weight

    expected = Fabric(strategy="single_device", devices=1, accelerator="cpu").launch(train)
    torch.testing.assert_close(on_two_ranks(train), expected, rtol=1e-12, atol=1e-12)


class Chooser(nn.Linear):
    def choose(self, inputs):
        return super().forward(inputs).argmax(-1)

    def count(self):
        raise RuntimeError("of the user's own")


def test_a_method_that_runs_layers_says_that_it_has_to_be_marked():
    def choose(fabric):
        torch.manual_seed(3)
        net = Chooser(4, 6)
        whole = net.weight.detach().clone(), net.bias.detach().clone()
        model = fabric.setup(net)
        inputs = torch.randn(5, 4)
        with torch.no_grad(), pytest.raises(ModuleError) as raised:
            model.choose(inputs)
        assert str(raised.value) == (
            "FSDPChooser.choose() runs layers whose parameters FSDPStrategy keeps in parts, and gathers for `forward` "
            "alone. Call model.mark_forward_method('choose') once after setup; it is then called on all ranks."
        )
        with pytest.raises(RuntimeError, match="of the user's own"):
            model.count()
        model.mark_forward_method(model.choose)
        with torch.no_grad():
            assert torch.equal(model.choose(inputs), nn.functional.linear(inputs, *whole).argmax(-1))

    on_two_ranks(choose)


def test_an_average_of_shards_is_a_module_of_its_own(tmp_path):
    def average(fabric):
        module = nn.Linear(4, 3)
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        mean = fabric.setup_module(nn.Linear(4, 3).requires_grad_(False))
        mean.load_state_dict(model.state_dict())
        before = model.weight.full_tensor().clone()
        fabric.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(mean.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.5)
        torch.testing.assert_close(mean.weight.full_tensor(), (before + model.weight.full_tensor()) / 2)

    on_two_ranks(average)


@pytest.mark.filterwarnings("ignore:SGD has 1 parameter")  # as under every strategy
def test_a_parameter_of_no_module_is_an_error():
    def set_up(fabric):
        module, other = nn.Linear(2, 2), nn.Linear(3, 3)
        fabric.setup(module, torch.optim.SGD([*module.parameters(), other.bias]))

    with pytest.raises(WorkerError, match=r"a parameter of shape \(3,\) that belongs to no module that was set up"):
        on_two_ranks(set_up)


def test_a_layer_that_was_put_into_a_sharded_module_is_an_error_at_the_next_set_up():
    def set_up_twice(fabric):
        net = nn.Sequential(nn.Linear(2, 2))
        fabric.setup(net, torch.optim.SGD(net.parameters()))
        fabric.setup(net, torch.optim.SGD(net.parameters()))
        net.append(nn.Linear(2, 2))
        fabric.setup(net, torch.optim.SGD(net.parameters()))

    with pytest.raises(WorkerError, match=r"'1\.weight' of Sequential isn't sharded, and other parameters are: each"):
        on_two_ranks(set_up_twice)


def test_accumulation_reduces_once():
    def count(fabric):
        module = Net(CASES["plain"])
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        counts = []
        for ends_window in (False, False, True):
            with torch.profiler.profile() as profile, fabric.no_backward_sync(model, enabled=not ends_window):
                fabric.backward(model(torch.arange(8)).mean())
            events = [event.name for event in profile.events()]
            counts.append(sum(name.startswith("c10d::") and "reduce_scatter" in name for name in events))
        optimizer.step()
        return counts

    assert on_two_ranks(count, FSDPStrategy(start_method="fork", auto_wrap_policy={Block})) == [0, 0, 3]


class Gan(Module):
    """Two networks, two optimizers, two backwards in one step, each of which uses a part of the parameters."""

    automatic_optimization = False

    def __init__(self, own=False):
        super().__init__()
        torch.manual_seed(5)
        self.generator, self.discriminator = nn.Linear(4, 4).double(), nn.Linear(4, 1).double()
        if own:
            self.factor = nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        generate, discriminate = self.optimizers()
        real = batch[0].double()
        fake = self.generator(real)
        loss = self.discriminator(fake.detach()).mean() - self.discriminator(real).mean()
        discriminate.zero_grad()
        self.manual_backward(loss)
        discriminate.step()
        generate.zero_grad()
        self.manual_backward(-self.discriminator(self.generator(real)).pow(2).mean())
        generate.step()

    def validation_step(self, batch, batch_idx):
        self.log("score", self.discriminator(batch[0].double()).mean())

    def configure_optimizers(self):
        return [torch.optim.AdamW(part.parameters(), lr=0.1) for part in (self.generator, self.discriminator)]


@pytest.mark.parametrize("sharding", ["FULL_SHARD", pytest.param("SHARD_GRAD_OP", marks=pytest.mark.slow)])
def test_manual_optimization_with_two_backwards_equals_one_device(sharding):
    sharded = fit(FSDPStrategy(start_method="fork", sharding_strategy=sharding), Gan())
    single = fit("single_device", Gan(), devices=1)
    for name, expected in single.state_dict().items():
        torch.testing.assert_close(sharded.state_dict()[name], expected, rtol=1e-10, atol=1e-12, msg=name)


class SkippedByRankOne(Net):
    """Has a loss for everything but its first batch on rank 1."""

    def training_step(self, batch, batch_idx):
        if self.trainer.global_rank == 1 and batch_idx == 0:
            return None
        return self.blocks[0](torch.ones(2, 6, dtype=torch.float64)).sum()

    def validation_step(self, batch, batch_idx):
        """Nothing."""


def test_a_step_without_a_loss_on_one_rank_alone_is_named_at_any_batch_of_a_window():
    message = r"^Rank 1 failed with .*training_step returned None for batch 0 of epoch 0 on rank 1, and not on rank 0: "
    strategy = FSDPStrategy(start_method="fork", timeout=timedelta(seconds=30))
    with pytest.raises(WorkerError, match=message):
        fit(strategy, SkippedByRankOne(CASES["plain"]), accumulate_grad_batches=2, precision="64-true")


class LeavesOutOnRankOne(SkippedByRankOne):
    """Leaves out a block in its last batch on rank 1, or on all ranks."""

    def __init__(self, is_alone):
        super().__init__(CASES["plain"])
        self.is_alone = is_alone

    def training_step(self, batch, batch_idx):
        outputs = self.blocks[0](torch.ones(2, 6, dtype=torch.float64))
        leaves_out = batch_idx == 3 and (self.trainer.global_rank == 1 or not self.is_alone)
        return (outputs if leaves_out else self.blocks[1](outputs)).sum()


@pytest.mark.parametrize(
    "units",
    [
        pytest.param(None, id="one unit", marks=pytest.mark.slow),
        pytest.param({Block}, id="blocks", marks=pytest.mark.slow),
        pytest.param({nn.Linear}, id="layers", marks=pytest.mark.slow),
    ],
)
def test_parameters_that_one_rank_alone_leaves_out_are_named(units):
    options = {"auto_wrap_policy": units, "start_method": "fork", "timeout": timedelta(seconds=60)}
    message = (
        r"^Rank 1 failed with .*ModuleError: The loss does not depend on .*'blocks.1.\w+.weight', .* on rank 1, and on "
        r"rank 0 it does, or leaves out others: FSDPStrategy exchanges .* by `loss \+ 0 \* layer\(inputs\).sum\(\)` for"
    )
    with pytest.raises(WorkerError, match=message):
        fit(FSDPStrategy(**options), LeavesOutOnRankOne(is_alone=True), precision="64-true")
    sharded = fit(FSDPStrategy(**options), LeavesOutOnRankOne(is_alone=False), precision="64-true")
    single = fit("single_device", LeavesOutOnRankOne(is_alone=False), devices=1, precision="64-true")
    for name, expected in single.state_dict().items():
        torch.testing.assert_close(sharded.state_dict()[name], expected, msg=name)


class Pair(nn.Module):
    """Two layers, of which it may leave out the second; or two such pairs."""

    def __init__(self, make):
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x, *leaves_out):
        outputs = self.first(x, *leaves_out[1:])
        return outputs if leaves_out and leaves_out[0] else self.second(outputs)


def test_a_rank_may_leave_out_parameters_where_gradients_are_not_exchanged():
    """Those of a whole unit that doesn't run, and some of one that does, in the first batch of a window."""

    def train(fabric):
        module = Pair(lambda: Pair(lambda: nn.Linear(2, 2)))
        model = fabric.setup(module)
        with fabric.no_backward_sync(model):
            leaves_out = fabric.global_rank == 1
            fabric.backward(model(torch.ones(1, 2), leaves_out, leaves_out).sum())
        fabric.backward(model(torch.ones(1, 2)).sum())
        return [one.grad is not None for one in module.parameters()]

    strategy = FSDPStrategy(
        start_method="fork", auto_wrap_policy={Pair}, sharding_strategy="HYBRID_SHARD", device_mesh=(2, 1)
    )
    assert on_two_ranks(train, strategy) == [True] * 8


def test_manual_optimization_needs_parameters_in_submodules():
    with pytest.raises(WorkerError, match="holds the parameter 'factor' itself"):
        fit(FSDPStrategy(start_method="fork"), Gan(own=True))


class Regression(Module):
    """Validates before it trains, and within."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        assert all(isinstance(part, FSDPModule) for part in (self,))
        self.log("val_loss", (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize(
    ("precision", "sharding"),
    [
        ("32-true", "FULL_SHARD"),
        ("bf16-mixed", "SHARD_GRAD_OP"),
        pytest.param("32-true", "SHARD_GRAD_OP", marks=pytest.mark.slow),
        pytest.param("bf16-mixed", "FULL_SHARD", marks=pytest.mark.slow),
        pytest.param("bf16-true", "FULL_SHARD", marks=pytest.mark.slow),
        pytest.param("bf16-true", "SHARD_GRAD_OP", marks=pytest.mark.slow),
    ],
)
def test_validation_in_between_sees_the_newest_weights(precision, sharding):
    strategy = FSDPStrategy(start_method="fork", sharding_strategy=sharding, auto_wrap_policy={nn.Linear})
    losses = []

    class Recorder(Callback):
        def on_validation_end(self, trainer, module):
            losses.append(trainer.callback_metrics["val_loss"].item())

        def state_dict(self):
            return {"losses": losses}

        def load_state_dict(self, state):
            losses[:] = state["losses"]

    options = {"precision": precision, "callbacks": Recorder(), "max_epochs": 4, "val_check_interval": 2}
    module = fit(strategy, Regression(), **options)
    assert len(set(losses)) == len(losses) > 4
    assert losses[-1] < losses[0]
    weight = module.net[0].weight
    assert torch.equal(weight, weight.bfloat16().float()) == (precision == "bf16-true")


class Metered(Regression):
    """Keeps a metric by hand: made in one hook, updated in the step, read in another hook."""

    def on_validation_epoch_start(self):
        self.total = torch.zeros(())

    def validation_step(self, batch):
        self.total += len(batch[0])

    def on_validation_epoch_end(self):
        self.log("total", self.total, reduce_fx="sum")


class Batches:
    """So many batches on each rank; how many no one knows."""

    def __init__(self, *nums):
        self.nums = nums

    def __iter__(self):
        rank = torch.distributed.get_rank()
        return (torch.full((1, 4), float(10 * rank + number)) for number in range(self.nums[rank]))


class KnownBatches(Batches):
    def __len__(self):
        return self.nums[torch.distributed.get_rank()]


class Evaluated(SmallNet):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        batch = batch[0] if isinstance(batch, list) else batch
        self.layer(batch)
        self.log("num", 1.0, reduce_fx="sum")
        self.log("mean", batch.mean())


def test_an_evaluation_goes_on_until_no_rank_has_a_batch():
    strategy, options = FSDPStrategy(start_method="fork"), {**QUIET, "accelerator": "cpu", "devices": 2}
    trainer = Trainer(strategy=strategy, use_distributed_sampler=False, limit_val_batches=4, **options)
    apart = [Batches(2, 6), Batches(0, 3), KnownBatches(3, 1)]
    together = CombinedLoader([Batches(1, 3), Batches(4, 4)], "min_size")
    found = [trainer.validate(Evaluated(), given) for given in (apart, together)]
    values = [list(each.values()) for results in found for each in results]
    assert values == [[6, pytest.approx(47 / 6)], [3, 11], [4, pytest.approx(13 / 4)], [4, pytest.approx(33 / 4)]]


def test_what_hooks_of_evaluation_make_can_be_changed_in_its_steps():
    totals = []

    class Recorder(Callback):
        def on_validation_end(self, trainer, module):
            totals.append(trainer.callback_metrics["total"].item())

        def state_dict(self):
            return {"totals": totals}

        def load_state_dict(self, state):
            totals[:] = state["totals"]

    fit(FSDPStrategy(start_method="fork"), Metered(), callbacks=Recorder())
    assert totals[-2:] == [16, 16]


def test_bf16_mixed_gathers_bf16_and_keeps_float32():
    def look(fabric):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        seen = []
        module[0].register_forward_hook(lambda part, inputs, output: seen.extend([part.weight.dtype, output.dtype]))
        module[1].register_forward_hook(lambda part, inputs, output: seen.append(part.weight.dtype))
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
        fabric.backward(model(torch.randn(8, 4)).float().pow(2).mean())
        optimizer.step()
        return (
            seen,
            module[0].weight.dtype,
            module[0].weight.grad.dtype,
            optimizer.state[module[0].weight]["exp_avg"].dtype,
        )

    seen, kept, gradient, moment = on_two_ranks(look, precision="bf16-mixed")
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert kept == gradient == moment == torch.float32


class Sinking(nn.Module):
    """Keeps a layer in float32, and a parameter beside layers of 16 bits."""

    keep_in_float32 = ("router", "sinks")

    def __init__(self):
        super().__init__()
        self.layer, self.router, self.sinks = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.full((4,), 1.001), persistent=False)
        self.seen = []

    def forward(self, x):
        x = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            weights = self.router(x.float()) * self.sinks * self.scale
        self.seen += [x.dtype, weights.dtype, self.scale.dtype]
        return x * weights.to(x.dtype)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", None])
def test_what_a_module_keeps_in_float32_is_gathered_so(precision):
    half = torch.bfloat16

    def look(fabric):
        torch.manual_seed(0)
        net = nn.Sequential(Sinking(), Sinking())
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.5))
        losses = []
        for _ in range(3):
            fabric.backward(loss := model(torch.linspace(-1, 1, 8).view(2, 4)).float().square().mean())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return net[1].seen[:3], [net[1].sinks.dtype, net[1].router.weight.dtype, net[1].layer.weight.dtype], losses

    policy = None if precision else MixedPrecision(param_dtype=half, reduce_dtype=torch.float32, buffer_dtype=half)
    strategy = FSDPStrategy(start_method="fork", mixed_precision=policy)
    seen, held, losses = on_two_ranks(look, strategy, precision=precision or "32-true")
    assert seen == [half, torch.float32, torch.float32]
    assert held == [torch.float32, torch.float32, half if precision == "bf16-true" else torch.float32]
    expected = on_two_ranks(look, "auto", devices=1, precision=precision or "bf16-mixed")[2]
    assert losses == pytest.approx(expected, rel=2e-2)


class FullPrecisionInputs(Module):
    """Gives float32 to layers with weights that autocast leaves alone, on a CPU at least."""

    def __init__(self, automatic=True):
        super().__init__()
        self.automatic_optimization = automatic
        torch.manual_seed(1)
        self.parts = nn.ModuleList(
            [
                nn.LayerNorm(4),
                nn.RMSNorm(4),
                nn.GroupNorm(2, 4),
                nn.InstanceNorm1d(4, affine=True),
                nn.Bilinear(4, 4, 4),
            ]
        )
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x = batch[0]
        layer, rms, group, instance, bilinear = self.parts
        y = layer(x) + rms(x) + group(x) + instance(torch.stack([x, x**2, x.sin()], 2)).relu_()[:, :, 0]
        y = y + 0.1 * bilinear(x, x)
        assert y.dtype == torch.float32
        loss = self.last(self.encoder(y.unsqueeze(1))[:, 0]).float().square().mean()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def validation_step(self, batch, batch_idx):
        self.encoder(batch[0].unsqueeze(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(None, id="one_unit", marks=pytest.mark.slow),
        pytest.param({nn.LayerNorm, nn.TransformerEncoderLayer}, id="units"),
    ],
)
@pytest.mark.parametrize(
    "automatic", [pytest.param(True, id="automatic"), pytest.param(False, id="manual", marks=pytest.mark.slow)]
)
def test_layers_that_compute_in_the_format_of_their_inputs_equal_one_device(policy, automatic):
    expected = fit("single_device", FullPrecisionInputs(automatic), 1, precision="bf16-mixed").state_dict()
    strategy = FSDPStrategy(start_method="fork", auto_wrap_policy=policy)
    found = fit(strategy, FullPrecisionInputs(automatic), precision="bf16-mixed").state_dict()
    begun = FullPrecisionInputs().state_dict()
    for name, value in expected.items():
        assert not torch.equal(value, begun[name]) or "bias" in name, name
        torch.testing.assert_close(found[name], value, rtol=0, atol=5e-3, msg=name)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"activation_checkpointing": True, "auto_wrap_policy": {Block}}, {}),
        pytest.param({"activation_checkpointing": {Block}}, {}, marks=pytest.mark.slow),
        pytest.param({"activation_checkpointing_policy": {Block}}, {}, marks=pytest.mark.slow),
        ({}, {"activation_checkpointing": "units", "activation_offload": True}),
        ({"forward_prefetch": True, "auto_wrap_policy": {Block}}, {}),
        ({"cpu_offload": True, "auto_wrap_policy": {Block}}, {}),
    ],
    ids=["checkpointing", "classes", "policy", "arguments", "prefetch", "offload"],
)
def test_options_that_save_memory_or_time_change_no_number(options, arguments):
    from support.sharded_training import train

    strategy = FSDPStrategy(start_method="fork", **options)
    losses, weights = train(CASES["clipped"], strategy, 2, max_steps=4, **arguments)
    expected, expected_weights = train(CASES["clipped"], max_steps=4)
    assert losses == pytest.approx(expected, rel=1e-9)
    for name, value in expected_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-11, msg=name)


def test_checkpointed_layers_are_computed_again_in_the_backward():
    def count(fabric):
        module, calls = nn.Sequential(Block(), Block()), []
        module[0].up.register_forward_hook(lambda *unused: calls.append(1))
        fabric.backward(fabric.setup(module)(torch.ones(1, 6)).sum())
        return len(calls)

    assert on_two_ranks(count, FSDPStrategy(start_method="fork", activation_checkpointing={Block})) == 2


# torch looks for a gradient where there is none, and hides the warning, which pytest makes an error before.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("layer", "checkpointing"),
    [(Block, True), (functools.partial(nn.TransformerEncoderLayer, 6, 2, 8, dropout=0.0), None)],
)
def test_units_are_compiled_once_and_then_cut(layer, checkpointing):
    def train(fabric, counter=None):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 6), nn.Sequential(*(layer() for _ in range(4))))
        names = list(module.state_dict())
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        assert isinstance(module[1][0], FSDPModule) == (counter is not None)
        for _ in range(2):
            fabric.backward(model(torch.ones(2, 6)).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        state = fabric.strategy.get_module_state_dict(module, layout="full")
        counts = fabric.strategy.gather_objects(counter.frame_count) if counter is not None else None
        assert list(state) == names or not fabric.is_global_zero
        return counts, {name: state[name] for name, _ in module.named_parameters() if name in state}

    counter = CompileCounter()
    strategy = FSDPStrategy(start_method="fork", activation_checkpointing=checkpointing)
    options = {"compile": {"region": "units", "backend": counter, "fullgraph": True}}
    counts, state = on_two_ranks(functools.partial(train, counter=counter), strategy, **options)
    assert counts == [1, 1]
    for value, expected in zip(state.values(), train(Fabric(accelerator="cpu", devices=1))[1].values(), strict=True):
        torch.testing.assert_close(value, expected)


def test_two_ways_to_say_what_is_checkpointed():
    with pytest.raises(ConfigurationError, match=r"activation_checkpointing of FSDPStrategy both say what becomes of"):
        Trainer(**QUIET, strategy=FSDPStrategy(activation_checkpointing={Block}), activation_checkpointing="units")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (None, "means the units of auto_wrap_policy, which is None"),
        ("units", "activation_checkpointing=True means the repeated blocks of the model, and Linear has no ModuleList"),
    ],
)
def test_activation_checkpointing_without_layers_says_what_to_pass(policy, message):
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(
            lambda fabric: fabric.setup(nn.Linear(2, 2)),
            FSDPStrategy(start_method="fork", activation_checkpointing=True, auto_wrap_policy=policy),
        )


def test_ranks_of_a_tensor_group_get_the_same_batches():
    def batches(fabric):
        loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(8)), batch_size=2))
        mine = [batch[0].tolist() for batch in loader]
        strategy = fabric.strategy
        return strategy.gather_objects((strategy.data_parallel_rank, strategy.data_parallel_size, mine))

    strategy = ModelParallelStrategy(start_method="fork", tensor_parallel_size=2)
    first, second, third, fourth = on_two_ranks(batches, strategy, devices=4)
    assert first == second
    assert third == fourth
    assert [first[:2], third[:2]] == [(0, 2), (1, 2)]
    assert {tuple(batch) for batch in first[2]} != {tuple(batch) for batch in third[2]}


class Counted(Module):
    """Logs how many samples there were, by step and by epoch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        number = float(len(batch[0]))
        self.log("num", number, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("num_now", number, on_step=True, reduce_fx="sum", sync_dist=True)
        return self.layer(batch[0]).pow(2).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append(float(self.trainer.callback_metrics["num_now"]))
        if batch_idx == 1:
            self.trainer.save_checkpoint(self.path)

    def on_train_end(self):
        assert self.steps == [2.0] * len(self.steps)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_tensor_group_counts_once_in_what_is_logged(tmp_path):
    def num_logged(strategy, devices, ckpt_path=None):
        module = Counted()
        module.path = tmp_path / "middle.ckpt"
        trainer = Trainer(**{**QUIET, "max_epochs": 1}, strategy=strategy, devices=devices)
        trainer.fit(module, DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2), ckpt_path=ckpt_path)
        return float(trainer.callback_metrics["num"])

    assert num_logged(ModelParallelStrategy(start_method="fork", tensor_parallel_size=2), 2) == 8
    assert num_logged("single_device", 1, tmp_path / "middle.ckpt") == 8  # what the group had counted goes on


def test_a_tensor_group_draws_the_same_random_numbers():
    def draw(fabric):
        fabric.seed_everything(fabric.global_rank)
        fabric.setup(nn.Linear(2, 2))
        return fabric.strategy.gather_objects((torch.rand(1).item(), random.random()))

    first, second = on_two_ranks(draw, ModelParallelStrategy(start_method="fork", tensor_parallel_size=2))
    assert first == second
    first, second = on_two_ranks(draw, ModelParallelStrategy(start_method="fork", data_parallel_size=2))
    assert first != second


def test_a_module_that_a_function_cuts_equals_one_device_with_sequence_parallel_norms():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.norm, self.out = nn.LayerNorm(4).double(), nn.Linear(4, 2).double()

        def forward(self, x):
            normed = self.norm(x)
            return self.out(normed.full_tensor() if isinstance(normed, DTensor) else normed)

    def cut(module, mesh):
        return parallelize_module(module, mesh["tensor_parallel"], {"norm": SequenceParallel()})

    def train(fabric):
        module = Normed()
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
        torch.manual_seed(4)
        for _ in range(4):
            for _ in range(2):
                fabric.backward(model(torch.randn(3, 6, 4, dtype=torch.float64)).pow(2).mean())
            norm = fabric.clip_gradients(model, optimizer, max_norm=0.5)
            placements = {getattr(one, "placements", None) for one in (module.norm.weight, module.norm.weight.grad)}
            assert len(placements) == 1, "an optimizer may take the rank's own term for the sum"
            optimizer.step()
            optimizer.zero_grad()
        return norm, fabric.strategy.get_module_state_dict(module, layout="full")

    expected_norm, expected = Fabric(strategy="single_device", devices=1, accelerator="cpu").launch(train)
    strategy = ModelParallelStrategy(start_method="fork", tensor_parallel_size=2, parallelize_fn=cut)
    norm, weights = on_two_ranks(train, strategy)
    torch.testing.assert_close(norm, expected_norm, rtol=1e-10, atol=0)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_a_function_that_cuts_another_module_is_refused():
    strategy = ModelParallelStrategy(start_method="fork", parallelize_fn=lambda module, mesh: nn.Linear(2, 2))
    fabric = Fabric(strategy=strategy, devices=1, accelerator="cpu")
    with pytest.raises(WorkerError, match="parallelize_fn returned a new Linear"):
        fabric.launch(lambda fabric: fabric.setup(nn.Linear(2, 2)))


@pytest.mark.slow
def test_several_stages_of_one_script_keep_the_module_sharded_and_unpatched():
    program = Path(__file__).with_name("stages_program.py")
    finished = programs.run([sys.executable, program, "fsdp"], timeout=120)
    assert finished.returncode == 0, finished.stderr
    (line,) = lines_of(finished.stdout)
    losses, changed = line.split("] ")
    assert len(set(losses.strip("[").split(", "))) == 1
    assert changed == "True []"


def test_the_module_error_of_ranks_that_built_differently():
    def build(fabric):
        # As many elements, so that gloo would mix rows with columns without a word.
        with pytest.raises(ModuleError, match=r"'weight': \(4, 6\) float32 on rank 0; \(6, 4\) float32 on rank 1"):
            fabric.setup(nn.Linear(*((4, 6) if fabric.global_rank else (6, 4)), bias=False))
        with torch.device("meta" if fabric.global_rank == 0 else "cpu"):
            module = nn.Linear(2, 2)
        fabric.setup(module)

    with pytest.raises(WorkerError, match="built on the meta device on rank 0 and with values on others") as failure:
        on_two_ranks(build)
    assert ModuleError.__name__ in str(failure.value)
