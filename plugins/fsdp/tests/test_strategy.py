"""core-fsdp beyond equal numbers: options, units, steps of every kind, in real processes over
gloo.
"""

import functools
import random
from datetime import timedelta

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
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

import core_fsdp
from core import (
    CombinedLoader,
    ConfigurationError,
    CoreError,
    Fabric,
    Module,
    ModuleError,
    Trainer,
    WorkerError,
)
from core.strategies import STRATEGY_REGISTRY, FSDPStrategy, ModelParallelStrategy
from core_fsdp.wrapping import choose_modules
from core_testing import Backend
from core_testing.ranks import QUIET, end_kept_ranks
from core_testing.waiting import slowness
from support.sharded_training import CASES, Block, Net, WholeWeights, train, train_on
from support.small_nets import At, quiet_trainer
from support.small_nets import Net as SmallNet

# a rank waits a third of it for others that don't come
SOON = timedelta(seconds=6 * slowness())
BLOCKS = ["", "blocks.0", "blocks.1"]
LINE, WORDS = torch.linspace(-1, 1, 8).view(2, 4), torch.arange(4).view(2, 2)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def on_ranks(function, strategy="fsdp", *args, devices=2, is_kept=True, **options):
    """What it returns on rank 0; ranks stay for the next test where the call pickles."""
    kept_for = (__name__, devices, *options.items()) if is_kept else None
    ranks = Backend("fsdp", num_processes=devices, options=options, kept_for=kept_for)
    return ranks.run(call, function, strategy, args)[0]


def call(rank, function, strategy, args):
    return function(rank.fabric(strategy), *args)


def on_one_device(function, *args, **options):
    return function(Fabric(accelerator="cpu", devices=1, **options), *args)


def refusal(fabric, function, *args):
    with pytest.raises(CoreError) as raised:
        function(fabric, *args)
    return str(raised.value)


def fit_on(rank, strategy, module, options):
    shares = 1 if isinstance(strategy, ModelParallelStrategy) else rank.backend.num_processes
    samples = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(samples), batch_size=4 // shares)
    whole = WholeWeights()
    rank.trainer(strategy, callbacks=whole, **{"max_epochs": 2, **options}).fit(
        module, loader, loader
    )
    return whole.weights, getattr(module, "seen", None)


def fit(strategy, module, devices=2, is_kept=True, **options):
    """Whole weights, and what the module has noted as `seen`."""
    kept_for = (__name__, devices) if is_kept else None
    return Backend("fsdp", num_processes=devices, kept_for=kept_for).run(
        fit_on, strategy, module, options
    )[0]


def set_up(fabric, make=lambda: nn.Linear(2, 2)):
    fabric.setup(make())


def test_aliases_and_lazy_names_are_the_package_own():
    assert FSDPStrategy is core_fsdp.FSDPStrategy
    assert [
        STRATEGY_REGISTRY.create(name).cpu_offload for name in ("fsdp", "fsdp_cpu_offload")
    ] == [False, True]
    assert (
        type(STRATEGY_REGISTRY.create("model_parallel"))
        is ModelParallelStrategy
        is core_fsdp.ModelParallelStrategy
    )


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
    assert strategy.mixed_precision == MixedPrecisionPolicy(
        torch.bfloat16, torch.float32, cast_forward_inputs=True
    )
    assert strategy.sharding.name == "SHARD_GRAD_OP"
    assert strategy.state_dict_type == "sharded"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_all_gathers": False}, "forward_prefetch=True gathers one unit earlier"),
        ({"backward_prefetch": 1}, "no option 'backward_prefetch' any more: FSDP2 always"),
        ({"param_init_fn": print}, "reset_parameters"),
        (
            {"ignored_states": []},
            "neither cuts nor reduces what it ignores, so that each rank would train such a",
        ),
        ({"ignored_params": set()}, "Keep it outside of the module that you train"),
        ({"auto_wrap": None}, "Did you mean 'auto_wrap_policy'"),
        ({"sharding_strategy": "ZERO"}, "expected one of 'FULL_SHARD'"),
        ({"state_dict_type": StateDictType.LOCAL_STATE_DICT}, "every number of processes can load"),
        ({"state_dict_type": "whole"}, "expected 'full' or 'sharded'"),
        ({"mixed_precision": "bf16"}, "pass precision='bf16-mixed'"),
        (
            {"mixed_precision": MixedPrecision(keep_low_precision_grads=True)},
            "precision='bf16-true'",
        ),
        ({"cpu_offload": "yes"}, "expected True, False"),
        ({"start_method": "thread"}, "expected one of 'subprocess'"),
    ],
)
def test_an_option_without_meaning_is_refused_with_the_reason(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FSDPStrategy(**options)


def test_transformer_layers_are_found_where_nobody_names_their_class():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attention, self.mixer = SelfAttention(2, 1), nn.Linear(2, 2)

        def forward(self, inputs):
            return self.mixer(inputs)

    class SelfAttention(nn.MultiheadAttention):
        pass

    layers = nn.ModuleDict(
        {"blocks": nn.ModuleList([Layer(), Layer()]), "head": nn.Sequential(nn.Linear(2, 2))}
    )
    chosen = choose_modules(layers, transformer_auto_wrap_policy, "auto_wrap_policy")
    assert [type(layer) for layer in chosen] == [Layer, Layer]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            transformer_auto_wrap_policy,
            r"and needs 'transformer_layer_cls' too, and Sequential has no list of layers with "
            r"attention in which to find it\. Bind it: "
            r"functools\.partial\(transformer_auto_wrap_policy, transformer_layer_cls=\{Transf",
        ),
        ({nn.Conv2d}, "auto_wrap_policy selects no module of Sequential: it holds Linear"),
        (
            lambda_auto_wrap_policy,
            r"lambda_auto_wrap_policy is called with module, recurse, .*needs 'lambda_fn' too\.",
        ),
    ],
)
def test_a_policy_that_selects_nothing_or_needs_more_than_it_is_called_with(policy, message):
    with pytest.raises(ConfigurationError, match=message):
        choose_modules(nn.Sequential(nn.Linear(2, 2)), policy, "auto_wrap_policy")


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (
            FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(3, 2)),
            {},
            r"whose product is the number .*, 4",
        ),
        (
            ModelParallelStrategy(tensor_parallel_size=3),
            {},
            "'auto' and tensor_parallel_size=3 make 1 x 3 = 3 processes, ",
        ),
        (
            FSDPStrategy(mixed_precision=MixedPrecisionPolicy(torch.bfloat16)),
            {"precision": "bf16-mixed"},
            "Keep one",
        ),
        (
            FSDPStrategy(state_dict_type="sharded"),
            {"plugins": "torch"},
            "TorchCheckpointIO stores the full form",
        ),
        (FSDPStrategy(), {"precision": "16-mixed"}, "Use precision='bf16-mixed'"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_process_starts(strategy, options, message):
    with pytest.raises(ConfigurationError, match=message):
        Fabric(strategy=strategy, devices=4, accelerator="cpu", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sharding_strategy": "HYBRID_SHARD"},
            "use sharding_strategy='FULL_SHARD' or 'SHARD_GRAD_OP'",
        ),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0: expected a positive number"),
    ],
)
def test_model_parallel_refuses_what_needs_a_third_axis(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ModelParallelStrategy(**options)


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
    module = Net(CASES["tied"])
    assert choose_modules(module, policy, "auto_wrap_policy") == [
        module.blocks[1],
        module.blocks[0],
    ]


class ByModule(FSDPStrategy):
    def configure_fsdp_auto_wrap_policy(self, module):
        return {type(module.blocks[0])}


def units(fabric, module):
    fabric.setup(module)
    return units_of(module)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FSDPStrategy(), BLOCKS),
        (ByModule(), BLOCKS),
        # A layer that shares its weight with one outside of it can't be a unit by itself.
        (FSDPStrategy(auto_wrap_policy={nn.Embedding, Block}), BLOCKS),
        (FSDPStrategy(auto_wrap_policy=None), [""]),
        (ModelParallelStrategy(data_parallel_size=2), [""]),
    ],
    ids=["fsdp", "by the module", "tied", "None", "model_parallel"],
)
def test_the_repeated_blocks_are_the_units_unless_told_otherwise(strategy, expected):
    assert on_ranks(units, strategy, Net(CASES["tied"])) == expected


@pytest.mark.parametrize("way", ["layers of a block", "penalty"])
def test_parameters_used_outside_of_their_unit(way):
    class Outside(nn.Sequential):
        """Uses parameters of its blocks where they don't run."""

        def __init__(self, way):
            super().__init__(Block(), Block())
            self.way = way

        def forward(self, x):
            if self.way == "layers of a block":
                return self[0].up(x)
            return super().forward(x).pow(2).mean() + sum(
                one.pow(2).sum() for one in self.parameters()
            )

    def step_outside(fabric, way):
        fabric.backward(fabric.setup(Outside(way))(torch.ones(1, 6)).sum())

    with pytest.raises(
        WorkerError, match=r"(?s)where its unit isn't gathered .*by auto_wrap_policy=None"
    ):
        on_ranks(step_outside, "fsdp", way, is_kept=False)


class Holding(nn.Module):
    """A layer, and what can't be sharded beside it."""

    def __init__(self, **parts):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))


def test_what_cannot_be_sharded_is_named():
    unfit = {
        "'scale' of Holding is a parameter of shape (), which has no dimension": {
            "scale": torch.tensor(1.0)
        },
        "'none' of Holding is a parameter of shape (0, 4), which has no element": {
            "none": torch.empty(0, 4)
        },
        "'eye' of Holding is a parameter of layout torch.sparse_coo, which can't": {
            "eye": torch.eye(4).to_sparse()
        },
        "'words' of Holding is Embedding(sparse=True), whose": {
            "words": nn.Embedding(8, 4, sparse=True)
        },
        "'bag' of Holding is EmbeddingBag(sparse=True), whose": {
            "bag": nn.EmbeddingBag(8, 4, sparse=True)
        },
        "'phase' of Holding is torch.complex64, and 'layer.weight' is torch.float32: the": {
            "phase": torch.ones(4, dtype=torch.complex64)
        },
        "'layer.weight' of Holding is torch.float32, and 'other.weight' is torch.float64: the": {
            "other": nn.Linear(4, 4).double()
        },
    }

    def refusals_to_shard(fabric):
        return [
            refusal(fabric, set_up, functools.partial(Holding, **parts)) for parts in unfit.values()
        ]

    found = on_ranks(refusals_to_shard)
    assert [message.startswith(begin) for message, begin in zip(found, unfit, strict=True)] == [
        True
    ] * len(unfit)


def train_three_steps(fabric, make, look, inputs=LINE):
    """The last loss, and what `look` makes of the module then."""
    torch.manual_seed(0)
    net = make()
    module, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(3):
        fabric.backward(loss := module(inputs).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), look(net)


def units_of(module):
    return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]


def assert_units(expected, policy, make, inputs):
    strategy = FSDPStrategy(auto_wrap_policy=policy)
    loss, found = on_ranks(train_three_steps, strategy, make, units_of, inputs)
    assert found == expected
    assert loss == pytest.approx(on_one_device(train_three_steps, make, units_of, inputs)[0])


def test_units_of_a_format_each():
    class Turned(Holding):
        """With a unit in another format than the rest."""

        def __init__(self):
            super().__init__(turn=nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64)))

        def forward(self, inputs):
            return self.turn(self.layer(inputs).to(torch.complex64)).abs()

    assert_units(["", "turn"], {nn.Sequential}, Turned, LINE)


@pytest.mark.parametrize(
    ("is_tied", "expected"), [(False, ["", "embed", "blocks.0", "blocks.1"]), (True, BLOCKS)]
)
def test_units_of_a_plan_of_transformers(is_tied, expected):
    class Planned(nn.Module):
        """A model in the manner of transformers, whose plan frees the embedding after use."""

        _fsdp_plan = {
            "embed": "free_full_weight",
            "blocks.*": "free_full_weight",
            "head": "keep_full_weight",
        }

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

    assert_units(expected, "units", functools.partial(Planned, is_tied), WORDS)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            torch.optim.LBFGS,
            "LBFGS can't step parameters in shards: it makes one vector of all parameters. Use an",
        ),
        (
            torch.optim.Adafactor,
            "Adafactor can't step parameters in shards: it looks at whole rows and columns. Use",
        ),
    ],
)
def test_optimizers_that_do_not_work_element_by_element(kind, message):
    def step_once(fabric, kind):
        module = nn.Linear(4, 4)
        module, optimizer = fabric.setup(module, kind(module.parameters()))
        fabric.backward(module(torch.ones(2, 4)).sum())
        optimizer.step()

    found = on_ranks(refusal, "fsdp", step_once, kind)
    assert found.startswith(message)
    assert "such as AdamW or SGD, or a strategy that keeps parameters whole, such as ddp." in found


def test_an_optimizer_made_before_goes_on_with_its_state():
    class Keeping(torch.optim.AdamW):
        """Keeps its list of parameters."""

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.kept = self.param_groups[0]["params"]

    def go_on_with_an_optimizer(fabric):
        torch.manual_seed(0)
        module, inputs = nn.Linear(4, 3).double(), torch.ones(2, 4, dtype=torch.float64)
        optimizer = Keeping(module.parameters(), lr=0.1)
        module(inputs).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model, stepped = fabric.setup(module, optimizer)
        fabric.backward(model(inputs).pow(2).sum())
        stepped.step()
        for held in (optimizer.kept, optimizer.param_groups[0]["params"]):
            assert all(mine is own for mine, own in zip(held, module.parameters(), strict=True))
        return fabric.strategy.get_module_state_dict(module, layout="full").get("weight")

    expected = on_one_device(go_on_with_an_optimizer)
    torch.testing.assert_close(on_ranks(go_on_with_an_optimizer), expected, rtol=1e-12, atol=1e-12)


def test_a_method_that_runs_layers_says_that_it_has_to_be_marked():
    class Chooser(nn.Linear):
        def choose(self, inputs):
            return super().forward(inputs).argmax(-1)

        def count(self):
            raise RuntimeError("of the user's own")

    def choose(fabric):
        torch.manual_seed(3)
        net = Chooser(4, 6)
        whole = net.weight.detach().clone(), net.bias.detach().clone()
        model = fabric.setup(net)
        inputs = torch.randn(5, 4)
        with torch.no_grad(), pytest.raises(ModuleError) as raised:
            model.choose(inputs)
        with pytest.raises(RuntimeError, match="of the user's own"):
            model.count()
        model.mark_forward_method(model.choose)
        with torch.no_grad():
            assert torch.equal(
                model.choose(inputs), nn.functional.linear(inputs, *whole).argmax(-1)
            )
        return str(raised.value)

    assert on_ranks(choose) == (
        "FSDPChooser.choose() runs layers whose parameters FSDPStrategy keeps in parts, and "
        "gathers for `forward` alone. Call model.mark_forward_method('choose') once after setup; "
        "it is then called on all ranks."
    )


@pytest.mark.filterwarnings("ignore:SGD has 1 parameter")  # as under every strategy
def test_a_parameter_of_no_module_that_was_set_up_is_refused():
    def step_a_stranger(fabric):
        module, other = nn.Linear(2, 2), nn.Linear(3, 3)
        fabric.setup(module, torch.optim.SGD([*module.parameters(), other.bias]))

    message = "a parameter of shape (3,) that belongs to no module that was set up"
    assert message in on_ranks(refusal, "fsdp", step_a_stranger)


@pytest.mark.filterwarnings("ignore:SGD has 1 parameter")  # as under every strategy
def test_a_parameter_added_before_a_second_set_up_is_named():
    def set_up_again_with_more(fabric):
        net = nn.Sequential(nn.Linear(2, 2))
        fabric.setup(net, torch.optim.SGD(net.parameters()))
        fabric.setup(net, torch.optim.SGD(net.parameters()))
        net.append(nn.Linear(2, 2))
        fabric.setup(net, torch.optim.SGD(net.parameters()))

    message = "'1.weight' of Sequential isn't sharded, and other parameters are: each"
    assert message in on_ranks(refusal, "fsdp", set_up_again_with_more)


def test_modules_that_differ_are_named():
    def build_differently(fabric):
        # As many elements, so that gloo would mix rows with columns without a word.
        fabric.setup(nn.Linear(*((4, 6) if fabric.global_rank else (6, 4)), bias=False))

    message = "'weight', (4, 6) float32 on rank 0\n  'weight', (6, 4) float"
    assert message in on_ranks(refusal, "fsdp", build_differently)


def test_a_module_on_meta_on_one_rank_alone_is_refused():
    def build_on_meta_on_one_rank(fabric):
        with torch.device("meta" if fabric.global_rank == 0 else "cpu"):
            module = nn.Linear(2, 2)
        fabric.setup(module)

    message = "built on the meta device on rank 0 and with values on others"
    assert message in on_ranks(refusal, "fsdp", build_on_meta_on_one_rank)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"auto_wrap_policy": None}, "means the units of auto_wrap_policy, which is None"),
        (
            {},
            "activation_checkpointing=True means the repeated blocks of the model, and Linear has "
            "no ModuleList",
        ),
    ],
)
def test_activation_checkpointing_without_units_is_refused(policy, message):
    strategy = FSDPStrategy(activation_checkpointing=True, **policy)
    assert message in on_ranks(refusal, strategy, set_up)


def test_accumulation_reduces_once():
    def num_reductions(fabric):
        module = Net(CASES["plain"])
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        counts = []
        for ends_window in (False, False, True):
            with (
                torch.profiler.profile() as profile,
                fabric.no_backward_sync(model, enabled=not ends_window),
            ):
                fabric.backward(model(torch.arange(8)).mean())
            events = [event.name for event in profile.events()]
            counts.append(
                sum(name.startswith("c10d::") and "reduce_scatter" in name for name in events)
            )
        optimizer.step()
        return counts

    assert on_ranks(num_reductions, FSDPStrategy(auto_wrap_policy={Block})) == [0, 0, 3]


def test_manual_optimization_needs_parameters_in_submodules():
    class WithOwnParameter(SmallNet):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def validation_step(self, batch, batch_idx):
            """Nothing."""

    with pytest.raises(WorkerError, match="holds the parameter 'factor' itself"):
        fit("fsdp", WithOwnParameter(), is_kept=False)


class SkippedByRankOne(Net):
    """Has a loss for everything but its first batch on rank 1."""

    def training_step(self, batch, batch_idx):
        if self.trainer.global_rank == 1 and batch_idx == 0:
            return None
        return self.blocks[0](torch.ones(2, 6, dtype=torch.float64)).sum()

    def validation_step(self, batch, batch_idx):
        """Nothing."""


def test_a_step_without_a_loss_on_one_rank_alone_is_named_at_any_batch_of_a_window():
    message = (
        r"^Rank 1 failed with .*training_step returned None for batch 0 of epoch 0 on rank "
        r"1, and not on rank 0: "
    )
    options = {"accumulate_grad_batches": 2, "precision": "64-true"}
    with pytest.raises(WorkerError, match=message):
        fit(FSDPStrategy(timeout=SOON), SkippedByRankOne(CASES["plain"]), is_kept=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "units", [None, {Block}, {nn.Linear}], ids=["one unit", "blocks", "layers"]
)
def test_parameters_that_one_rank_alone_leaves_out_are_named(units):
    class LeavesOutOnRankOne(SkippedByRankOne):
        """Leaves out a block in its last batch on rank 1, or on all ranks."""

        def __init__(self, is_alone):
            super().__init__(CASES["plain"])
            self.is_alone = is_alone

        def training_step(self, batch, batch_idx):
            outputs = self.blocks[0](torch.ones(2, 6, dtype=torch.float64))
            leaves_out = batch_idx == 3 and (self.trainer.global_rank == 1 or not self.is_alone)
            return (outputs if leaves_out else self.blocks[1](outputs)).sum()

    strategy = FSDPStrategy(auto_wrap_policy=units, timeout=SOON)
    message = (
        r"^Rank 1 failed with .*ModuleError: The loss does not depend on .*'blocks.1.\w+.weight', "
        r".* on rank 1, and on rank 0 it does, or leaves out others: FSDPStrategy exchanges .* by "
        r"`loss \+ 0 \* layer\(inputs\).sum\(\)` for"
    )
    with pytest.raises(WorkerError, match=message):
        fit(strategy, LeavesOutOnRankOne(is_alone=True), is_kept=False, precision="64-true")
    sharded, _ = fit(strategy, LeavesOutOnRankOne(is_alone=False), precision="64-true")
    single, _ = fit(
        "single_device", LeavesOutOnRankOne(is_alone=False), devices=1, precision="64-true"
    )
    torch.testing.assert_close(sharded, single)


def test_a_rank_may_leave_out_parameters_where_gradients_are_not_exchanged():
    class Pair(nn.Module):
        """Two layers, of which it may leave out the second; or two such pairs."""

        def __init__(self, make):
            super().__init__()
            self.first, self.second = make(), make()

        def forward(self, x, *leaves_out):
            outputs = self.first(x, *leaves_out[1:])
            return outputs if leaves_out and leaves_out[0] else self.second(outputs)

    def leave_out_in_a_window(fabric):
        """Those of a whole unit that doesn't run, and some of one that does, in the first batch of
        a window.
        """
        module = Pair(lambda: Pair(lambda: nn.Linear(2, 2)))
        model = fabric.setup(module)
        with fabric.no_backward_sync(model):
            leaves_out = fabric.global_rank == 1
            fabric.backward(model(torch.ones(1, 2), leaves_out, leaves_out).sum())
        fabric.backward(model(torch.ones(1, 2)).sum())
        return [one.grad is not None for one in module.parameters()]

    strategy = FSDPStrategy(
        auto_wrap_policy={Pair}, sharding_strategy="HYBRID_SHARD", device_mesh=(2, 1)
    )
    assert on_ranks(leave_out_in_a_window, strategy) == [True] * 8


class Regression(Module):
    """Validates before it trains and within, and keeps a metric by hand: made in one hook, updated
    in the step.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def on_validation_epoch_start(self):
        self.total = torch.zeros(())

    def validation_step(self, batch, batch_idx):
        assert isinstance(self, FSDPModule)
        self.total += len(batch[0])
        self.log("loss", self.training_step(batch, batch_idx))

    def on_validation_epoch_end(self):
        self.log("total", self.total, reduce_fx="sum")

    def on_validation_end(self):
        metrics = self.trainer.callback_metrics
        self.seen.append((metrics["total"].item(), metrics["loss"].item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize(
    ("precision", "sharding"),
    [
        ("32-true", "FULL_SHARD"),
        ("bf16-mixed", "SHARD_GRAD_OP"),
        pytest.param("bf16-true", "FULL_SHARD", marks=pytest.mark.slow),
    ],
)
def test_validation_in_between_sees_the_newest_weights(precision, sharding):
    strategy = FSDPStrategy(sharding_strategy=sharding, auto_wrap_policy={nn.Linear})
    weights, seen = fit(
        strategy, Regression(), precision=precision, max_epochs=4, val_check_interval=2
    )
    totals, losses = zip(*seen, strict=True)
    assert set(totals) == {16}
    assert len(set(losses)) == len(losses) > 4
    assert losses[-1] < losses[0]
    weight = weights["net.0.weight"]
    assert torch.equal(weight, weight.bfloat16().float()) == (precision == "bf16-true")


def test_an_evaluation_goes_on_until_no_rank_has_a_batch():
    class Batches:
        """So many batches on each rank; how many no one knows."""

        def __init__(self, *nums):
            self.nums = nums

        def __iter__(self):
            rank = torch.distributed.get_rank()
            return (
                torch.full((1, 4), float(10 * rank + number)) for number in range(self.nums[rank])
            )

    class KnownBatches(Batches):
        def __len__(self):
            return self.nums[torch.distributed.get_rank()]

    class Evaluated(SmallNet):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            batch = batch[0] if isinstance(batch, list) else batch
            self.layer(batch)
            self.log("num", 1.0, reduce_fx="sum")
            self.log("mean", batch.mean())

    def evaluate(rank, given):
        trainer = rank.trainer("fsdp", use_distributed_sampler=False, limit_val_batches=4)
        return [tuple(found.values()) for found in trainer.validate(Evaluated(), given)]

    ranks = Backend("fsdp", num_processes=2, kept_for=(__name__, 2))
    apart = ranks.run(evaluate, [Batches(2, 6), Batches(0, 3), KnownBatches(3, 1)])[0]
    assert apart == [(6, pytest.approx(47 / 6)), (3, 11), (4, pytest.approx(13 / 4))]
    together = CombinedLoader([Batches(1, 3), Batches(4, 4)], "min_size")
    assert ranks.run(evaluate, together)[0] == [(4, pytest.approx(33 / 4))]


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", None])
def test_what_a_module_keeps_in_float32_is_gathered_so(precision):
    class Sinking(nn.Module):
        """Keeps a layer in float32, and a parameter beside layers of 16 bits."""

        keep_in_float32 = ("router", "sinks")

        def __init__(self):
            super().__init__()
            self.layer, self.router, self.sinks = (
                nn.Linear(4, 4),
                nn.Linear(4, 4),
                nn.Parameter(torch.ones(4)),
            )
            self.register_buffer("scale", torch.full((4,), 1.001), persistent=False)
            self.seen = []

        def forward(self, x):
            x = self.layer(x)
            with torch.autocast("cpu", enabled=False):
                weights = self.router(x.float()) * self.sinks * self.scale
            self.seen += [x.dtype, weights.dtype, self.scale.dtype]
            return x * weights.to(x.dtype)

    class TwoSinking(nn.Sequential):
        def __init__(self):
            super().__init__(Sinking(), Sinking())

    def formats_of(net):
        return net[1].seen[:3], [
            net[1].sinks.dtype,
            net[1].router.weight.dtype,
            net[1].layer.weight.dtype,
        ]

    half = torch.bfloat16
    policy = (
        None
        if precision
        else MixedPrecision(param_dtype=half, reduce_dtype=torch.float32, buffer_dtype=half)
    )
    strategy, run = FSDPStrategy(mixed_precision=policy), (TwoSinking, formats_of)
    loss, (seen, held) = on_ranks(
        train_three_steps, strategy, *run, precision=precision or "32-true"
    )
    assert seen == [half, torch.float32, torch.float32]
    assert held == [
        torch.float32,
        torch.float32,
        half if precision == "bf16-true" else torch.float32,
    ]
    expected, _ = on_one_device(train_three_steps, *run, precision=precision or "bf16-mixed")
    assert loss == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize(
    "policy", [{nn.LayerNorm, nn.TransformerEncoderLayer}, None], ids=["units", "one unit"]
)
def test_layers_that_compute_in_the_format_of_their_inputs_equal_one_device(policy):
    class FullPrecisionInputs(nn.Module):
        """Gives float32 to layers with weights that autocast leaves alone, on a CPU at least."""

        def __init__(self):
            super().__init__()
            instance = nn.InstanceNorm1d(4, affine=True)
            self.parts = nn.ModuleList(
                [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), instance, nn.Bilinear(4, 4, 4)]
            )
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.last = nn.Linear(4, 1)

        def forward(self, x):
            layer, rms, group, instance, bilinear = self.parts
            y = (
                layer(x)
                + rms(x)
                + group(x)
                + instance(torch.stack([x, x**2, x.sin()], 2)).relu_()[:, :, 0]
            )
            y = y + 0.1 * bilinear(x, x)
            assert y.dtype == torch.float32
            return self.last(self.encoder(y.unsqueeze(1))[:, 0])

    def encoded(net):
        """Without gradients torch takes another path."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return net.eval()(LINE).float()

    run = train_three_steps, FullPrecisionInputs, encoded
    expected = on_one_device(*run, precision="bf16-mixed")
    found = on_ranks(
        run[0], FSDPStrategy(auto_wrap_policy=policy), *run[1:], precision="bf16-mixed"
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)


@functools.cache
def clipped():
    return train(CASES["clipped"])


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (FSDPStrategy(activation_checkpointing=True, auto_wrap_policy={Block}), {}),
        (FSDPStrategy(activation_checkpointing_policy={Block}), {}),
        ("fsdp", {"activation_checkpointing": "units", "activation_offload": True}),
        (FSDPStrategy(forward_prefetch=True, auto_wrap_policy={Block}), {}),
        (FSDPStrategy(cpu_offload=True, auto_wrap_policy={Block}), {}),
    ],
    ids=["checkpointing", "policy", "arguments", "prefetch", "offload"],
)
def test_options_that_save_memory_or_time_change_no_number(strategy, options):
    ranks = Backend(lambda: strategy, num_processes=2, options=options)
    losses, weights = ranks.run(train_on, "clipped", 2)[0]
    expected, expected_weights = clipped()
    assert losses == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(weights, dict(expected_weights), rtol=1e-9, atol=1e-11)


def test_checkpointed_layers_are_computed_again_in_the_backward():
    def num_calls(fabric):
        module, calls = nn.Sequential(Block(), Block()), []
        module[0].up.register_forward_hook(lambda *unused: calls.append(1))
        fabric.backward(fabric.setup(module)(torch.ones(1, 6)).sum())
        return len(calls)

    assert on_ranks(num_calls, FSDPStrategy(activation_checkpointing={Block})) == 2


# torch looks for a gradient where there is none, and hides the warning, which pytest makes an error
# before.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("layer", "checkpointing"),
    [(Block, True), (functools.partial(nn.TransformerEncoderLayer, 6, 2, 8, dropout=0.0), None)],
)
def test_units_are_compiled_once_and_then_cut(layer, checkpointing):
    def train_compiled(fabric, layer, counter=None):
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
        assert list(state) == names or not fabric.is_global_zero
        return counter and counter.frame_count, {
            key: state[key] for key, _ in module.named_parameters() if key in state
        }

    counter = CompileCounter()
    strategy = FSDPStrategy(activation_checkpointing=checkpointing)
    options = {"compile": {"region": "units", "backend": counter, "fullgraph": True}}
    count, state = on_ranks(train_compiled, strategy, layer, counter, is_kept=False, **options)
    assert count == 1
    torch.testing.assert_close(state, on_one_device(train_compiled, layer)[1])


def test_two_ways_to_say_what_is_checkpointed():
    with pytest.raises(
        ConfigurationError,
        match=r"activation_checkpointing of FSDPStrategy both say what becomes of",
    ):
        Trainer(
            **QUIET,
            strategy=FSDPStrategy(activation_checkpointing={Block}),
            activation_checkpointing="units",
        )


def batches(fabric):
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(8)), batch_size=2))
    mine = [batch[0].tolist() for batch in loader]
    strategy = fabric.strategy
    return strategy.gather_objects((strategy.data_parallel_rank, strategy.data_parallel_size, mine))


def test_ranks_of_a_tensor_group_get_the_same_batches():
    first, second, third, fourth = on_ranks(
        batches, ModelParallelStrategy(tensor_parallel_size=2), devices=4
    )
    assert first == second
    assert third == fourth
    assert [first[:2], third[:2]] == [(0, 2), (1, 2)]
    assert {tuple(batch) for batch in first[2]} != {tuple(batch) for batch in third[2]}


def test_a_tensor_group_counts_once_in_what_is_logged(tmp_path):
    class Counted(SmallNet):
        """Logs how many samples there were, by step and by epoch, and saves in the middle."""

        def training_step(self, batch, batch_idx):
            number = float(len(batch[0]))
            self.log("num", number, on_step=False, on_epoch=True, reduce_fx="sum")
            self.log("num_now", number, on_step=True, reduce_fx="sum", sync_dist=True)
            return super().training_step(batch[0], batch_idx)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert self.trainer.callback_metrics["num_now"] == 2
            if batch_idx == 1:
                self.trainer.save_checkpoint(self.path)

    def num_logged(rank, strategy, path, ckpt_path=None):
        module, trainer = Counted(), rank.trainer(strategy, max_epochs=1)
        module.path = path
        trainer.fit(
            module, DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2), ckpt_path=ckpt_path
        )
        return trainer.callback_metrics["num"]

    path, strategy = tmp_path / "middle.ckpt", ModelParallelStrategy(tensor_parallel_size=2)
    assert Backend("fsdp", num_processes=2, kept_for=(__name__, 2)).run(
        num_logged, strategy, path
    ) == [8, 8]
    # What the group had counted goes on.
    assert Backend("single_device").run(
        num_logged, "single_device", tmp_path / "other.ckpt", path
    ) == [8]


@pytest.mark.parametrize(
    ("axis", "num_drawn"), [("tensor_parallel_size", 1), ("data_parallel_size", 2)]
)
def test_a_tensor_group_draws_the_same_random_numbers(axis, num_drawn):
    def draw(fabric):
        fabric.seed_everything(fabric.global_rank)
        fabric.setup(nn.Linear(2, 2))
        return fabric.strategy.gather_objects((torch.rand(1).item(), random.random()))

    assert len(set(on_ranks(draw, ModelParallelStrategy(**{axis: 2})))) == num_drawn


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

    def train_normed(fabric):
        module = Normed()
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
        torch.manual_seed(4)
        for _ in range(4):
            for _ in range(2):
                fabric.backward(model(torch.randn(3, 6, 4, dtype=torch.float64)).pow(2).mean())
            norm = fabric.clip_gradients(model, optimizer, max_norm=0.5)
            placements = {
                getattr(one, "placements", None)
                for one in (module.norm.weight, module.norm.weight.grad)
            }
            assert len(placements) == 1, "an optimizer may take the rank's own term for the sum"
            optimizer.step()
            optimizer.zero_grad()
        return {"norm": norm, **fabric.strategy.get_module_state_dict(module, layout="full")}

    found = on_ranks(
        train_normed, ModelParallelStrategy(tensor_parallel_size=2, parallelize_fn=cut)
    )
    torch.testing.assert_close(found, on_one_device(train_normed), rtol=1e-10, atol=1e-12)


def test_a_module_that_a_function_cuts_is_saved_after_fit_and_trains_on_in_its_precision(tmp_path):
    def cut_columns(module, mesh):
        parallelize_module(
            module, mesh["tensor_parallel"], {"layer": RowwiseParallel(input_layouts=Replicate())}
        )

    def save_after_fit(rank, path):
        strategy = ModelParallelStrategy(tensor_parallel_size=2, parallelize_fn=cut_columns)
        trainer, module, weights = rank.trainer(strategy, max_epochs=1), SmallNet(), {}
        trainer.fit(module, LINE.split(1))
        trainer.save_checkpoint(path)
        at_end = At(
            "on_train_end",
            lambda module: weights.update(strategy.get_module_state_dict(module, layout="full")),
        )
        rank.trainer(strategy, max_epochs=2, callbacks=[at_end]).fit(
            module, LINE.split(1), ckpt_path=path
        )
        return weights

    found = Backend("fsdp", num_processes=2, options={"precision": "64-true"}).run(
        save_after_fit, tmp_path / "a"
    )
    alone = SmallNet()
    quiet_trainer(max_epochs=2, precision="64-true").fit(alone, LINE.split(1))
    torch.testing.assert_close(found[0], {**alone.state_dict()}, rtol=1e-12, atol=1e-12)


def test_a_function_that_cuts_another_module_is_refused():
    def make_another(module, mesh):
        return nn.Linear(2, 2)

    strategy = ModelParallelStrategy(parallelize_fn=make_another)
    assert "parallelize_fn returned a new Linear" in on_ranks(refusal, strategy, set_up)


def test_several_stages_of_one_program_keep_the_module_sharded_and_unpatched():
    def run_stages(rank):
        module, data = (
            Regression(),
            DataLoader(TensorDataset(torch.arange(48.0).view(12, 4) / 10), batch_size=3),
        )
        trainer = rank.trainer("fsdp", max_epochs=1)
        trainer.fit(module, data, data)
        trainer.validate(module, data)
        rank.trainer("fsdp").validate(module, data)
        return module.seen, vars(module).keys() & {"training_step", "validation_step"}

    ranks = Backend("fsdp", num_processes=2, kept_for=(__name__, 2))
    seen, patched = ranks.run(run_stages)[0]
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert not patched
