"""Linear layers that compute in 8-bit floats: torchao's numbers, under each strategy, and
refusals.
"""

import copy
import functools
import importlib
import pickle
from dataclasses import replace

import pytest
import torch
from float8_nets import fit, stack
from torch import nn
from torch.utils.checkpoint import checkpoint

from core import ConfigurationError, Fabric, Strategy, Trainer
from core_testing.ranks import Backend
from core_torchao import Float8Precision, fp8_mixed

pytestmark = pytest.mark.filterwarnings("ignore:precision=.* is emulated on this 'cpu'")
RECIPES = {"fp8-mixed": "tensorwise", "fp8-mixed-rowwise": "rowwise"}
INPUTS = torch.randn(12, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def float8():
    """Imported in the process that runs these tests, and in no other that collects them."""
    return importlib.import_module("torchao.float8")


def set_up(module, precision="fp8-mixed"):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    return fabric, fabric.setup(module)


def step(module, precision="fp8-mixed"):
    """The gradients of one backward."""
    fabric, wrapped = set_up(module, precision)
    fabric.backward(wrapped(INPUTS).float().square().mean())
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize(("precision", "recipe"), RECIPES.items())
def test_numbers_are_those_of_torchao(float8, precision, recipe):
    """Of inputs in float32 too, as LayerNorm gives them, and with a layer that stays in
    bfloat16.
    """

    class InHalf(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, inputs):
            return self.layer(inputs.bfloat16())

    def by_hand(float8, recipe, module):
        """The gradients by torchao's own layers, which on a CPU don't look for autocast."""
        config = replace(float8.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
        float8.convert_to_float8_training(
            module, config=config, module_filter_fn=lambda layer, name: name in ("0", "3")
        )
        for index in (0, 3):
            module[index] = InHalf(module[index])
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(INPUTS).float().square().mean()
        loss.backward()
        return [parameter.grad for parameter in module.parameters()]

    found, expected = step(stack(), precision), by_hand(float8, recipe, stack())
    assert all(map(torch.equal, found, expected))
    half = step(stack(), "bf16-mixed")
    errors = [
        float((one - other).norm() / other.norm()) for one, other in zip(found, half, strict=True)
    ]
    assert 0.02 < max(errors) < 0.2


@pytest.mark.parametrize(
    "change",
    ["checkpointed", pytest.param("compiled", marks=pytest.mark.slow), "inside another stage"],
)
def test_layers_stay_in_8_bits(change):
    """Where a forward is computed again in backward, or compiled, and after another stage's context
    was entered.
    """

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = stack()

        def forward(self, inputs):
            return checkpoint(self.layers, inputs, use_reentrant=False)

    class Entering(Checkpointed):
        def forward(self, inputs):
            with fabric.autocast():
                self.layers(inputs)
            return self.layers(inputs)

    fabric = Fabric(accelerator="cpu", devices=1, precision="fp8-mixed")
    module = {"checkpointed": Checkpointed, "compiled": stack, "inside another stage": Entering}[
        change
    ]()
    called = torch.compile(module, backend="aot_eager") if change == "compiled" else module
    fabric.backward(fabric.setup(called)(INPUTS).float().square().mean())
    found = [parameter.grad for parameter in module.parameters()]
    assert all(map(torch.equal, found, step(stack())))


def test_the_module_is_changed_within_a_step_only():
    module = stack()
    names = {name: value.dtype for name, value in module.state_dict().items()}
    plain = module(INPUTS)
    _, wrapped = set_up(module)
    inside = wrapped(INPUTS)
    assert inside.dtype == torch.bfloat16
    assert not torch.equal(inside, set_up(stack(), "bf16-mixed")[1](INPUTS))
    assert torch.equal(module(INPUTS), plain)
    assert {name: value.dtype for name, value in module.state_dict().items()} == names
    assert all(type(value) is nn.Parameter for value in module.parameters())
    copied = pickle.loads(pickle.dumps(module))
    assert torch.equal(copied(INPUTS), plain)


def test_frozen_and_parametrized_weights_train_what_is_beside_them():
    class LoRA(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = (
                nn.Parameter(torch.ones(2, 32) / 8),
                nn.Parameter(torch.ones(64, 2) / 8),
            )

        def forward(self, weight):
            return weight + self.up @ self.down

    module = stack().requires_grad_(False)
    merged = copy.deepcopy(module)
    nn.utils.parametrize.register_parametrization(module[0], "weight", LoRA())
    with torch.no_grad():
        merged[0].weight.copy_(module[0].weight)
    _, wrapped = set_up(module)
    output = wrapped(INPUTS)
    output.float().square().mean().backward()
    added = module[0].parametrizations.weight[0]
    assert added.down.grad.norm() > 0
    assert added.up.grad.norm() > 0
    # The product of the small matrices is in bfloat16, as under bf16-mixed.
    torch.testing.assert_close(output, set_up(merged)[1](INPUTS), rtol=0.05, atol=0.05)


def test_it_says_once_that_it_is_emulated():
    with pytest.warns(UserWarning, match="precision='fp8-mixed' is emulated on this 'cpu'") as said:
        set_up(stack())
    assert len(said) == 1


def test_a_model_that_would_not_be_in_8_bits_is_refused(float8):
    def refused(module, match, precision=None):
        with pytest.raises(ConfigurationError, match=match):
            (precision or fp8_mixed()).convert_module(module)

    refused(
        nn.ReLU(),
        "'fp8-mixed' is for linear layers, and ReLU calls none. Use precision='bf16-mixed'",
    )
    refused(nn.MultiheadAttention(32, 2), "MultiheadAttention calls none")
    narrow = nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 32))
    refused(narrow, r"none of Sequential's is: the weight of '0' has the shape \(4, 32\)")
    refused(stack(), "skip and filter_fn leave none", Float8Precision(skip=["*"]))
    refused(
        stack(),
        "skip names 'head', and Sequential has no such linear layer, among 0, 3, 4",
        Float8Precision(skip="head"),
    )
    with pytest.raises(
        ConfigurationError,
        match="expected 'tensorwise', 'rowwise', 'rowwise_with_gw_hp', or a torchao",
    ):
        Float8Precision("blockwise")


def test_layers_that_are_left_out(float8, caplog):
    caplog.set_level("INFO", "core_torchao")
    gradients = step(
        stack(), Float8Precision(skip=["3"], filter_fn=lambda layer, name: layer.out_features > 4)
    )
    assert "Float8Precision('tensorwise'): 2 linear layers are in bfloat16: 3, 4." in caplog.text
    half, whole = step(stack(), "bf16-mixed"), step(stack())
    assert not torch.equal(gradients[0], half[0])
    assert not torch.equal(gradients[0], whole[0])
    given = step(
        stack(), Float8Precision(float8.Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"))
    )
    assert not torch.equal(given[0], whole[0])


def test_strategies_that_cannot_are_refused_before_work():
    with pytest.raises(
        ConfigurationError, match="emulates that on a CPU, and this run is on 'xpu'"
    ):
        fp8_mixed().connect(Strategy(parallel_devices=[torch.device("xpu")]))
    with pytest.raises(
        ConfigurationError,
        match="copies them to 2 devices, which would compute with the first one's",
    ):
        fp8_mixed().connect(
            Strategy(parallel_devices=[torch.device("cuda", 0), torch.device("cuda", 1)])
        )
    for options in ({"tensor": 2}, {"pipeline": 2}):
        strategy = importlib.import_module("core_parallel").ParallelStrategy(**options)
        with pytest.raises(
            ConfigurationError,
            match=r"ParallelStrategy, with these options, keeps .* strategy='ddp'",
        ):
            Trainer(accelerator="cpu", devices=2, strategy=strategy, precision="fp8-mixed")
    strategy = importlib.import_module("core_fsdp").FSDPStrategy(
        mixed_precision=torch.distributed.fsdp.MixedPrecisionPolicy()
    )
    with pytest.raises(
        ConfigurationError, match="mixed_precision and precision='fp8-mixed' both say"
    ):
        Trainer(accelerator="cpu", devices=2, strategy=strategy, precision="fp8-mixed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "precision", "gathered", "tolerance"),
    [
        ("ddp", "fp8-mixed", "Parameter", 0),
        ("fsdp", "fp8-mixed", "WeightWithDynamicFloat8CastTensor", 0),
        # Weights are gathered in bfloat16, and rounded twice.
        ("fsdp", "fp8-mixed-rowwise", "Tensor", 0.05),
    ],
)
def test_ranks_train_as_one_device_does(tmp_path, strategy, precision, gathered, tolerance):
    """Also when stopped and resumed, as the same, on one device, and in another format."""
    shards, one = Backend(lambda: strategy, num_processes=2), Backend(lambda: "single_device")
    whole = shards.run(fit, precision, 4)[0]
    expected = one.run(fit, precision, 4)[0]
    assert whole["gathered"] == gathered
    assert whole["stored"] == {"Tensor"}
    moved = moved_apart(whole["weights"], expected["weights"])
    assert moved == 0 if tolerance == 0 else 0 < moved < tolerance
    shards.run(fit, precision, 2, tmp_path / "half.ckpt")
    resumed = shards.run(fit, precision, 4, None, tmp_path / "half.ckpt")[0]
    assert moved_apart(resumed["weights"], whole["weights"]) == 0
    assert resumed["losses"] == whole["losses"][2:]
    elsewhere = one.run(fit, precision, 4, None, tmp_path / "half.ckpt")[0]
    assert moved_apart(elsewhere["weights"], whole["weights"]) <= tolerance
    half = one.run(fit, "bf16-mixed", 4, None, tmp_path / "half.ckpt")[0]
    assert 0 < moved_apart(half["weights"], whole["weights"]) < 0.05


def moved_apart(one, other):
    """The largest distance of two weights, relative to the largest value."""
    assert one.keys() == other.keys()
    return max(
        float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in other
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "gathered", "num_processes", "tolerance"),
    [
        (
            {"activation_checkpointing": True, "cpu_offload": True},
            "WeightWithDynamicFloat8CastTensor",
            2,
            0,
        ),
        ({"sharding_strategy": "NO_SHARD"}, "WeightWithDynamicFloat8CastTensor", 2, 0),
        # Sums of halves are rounded otherwise, as under bf16-mixed, by 0.016 there.
        ({"parallelize": True}, "Tensor", 2, 0.05),
        # Rows that don't divide evenly are gathered in bfloat16.
        ({}, "Tensor", 3, None),
    ],
)
def test_options_of_shards(options, gathered, num_processes, tolerance):
    def strategy_of(options):
        if "parallelize" in options:
            return importlib.import_module("core_fsdp").ModelParallelStrategy(parallelize_fn=cut)
        return importlib.import_module("core_fsdp").FSDPStrategy(**options)

    def cut(module, mesh):
        parallel = importlib.import_module("torch.distributed.tensor.parallel")
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        for block in module.blocks:
            parallel.parallelize_module(block, mesh["tensor_parallel"], plan)

    shards = Backend(functools.partial(strategy_of, options), num_processes=num_processes)
    num_shares = 1 if "parallelize" in options else num_processes
    found = shards.run(fit, "fp8-mixed", 4, None, None, num_shares)[0]
    assert found["gathered"] == gathered
    if tolerance is not None:
        expected = Backend(lambda: "single_device").run(fit, "fp8-mixed", 4)[0]
        assert moved_apart(found["weights"], expected["weights"]) <= tolerance


@pytest.mark.slow
def test_built_on_meta_it_has_the_same_weights():
    def built_on_meta(rank):
        fabric = rank.fabric(precision="fp8-mixed")
        outputs = []
        for is_empty in (False, True):
            torch.manual_seed(0)
            with fabric.init_module(empty_init=is_empty):
                module = stack()
            outputs.append(fabric.setup_module(module)(torch.ones(4, 32)).float().detach())
        return outputs

    for outputs in Backend(lambda: "fsdp", num_processes=2).run(built_on_meta):
        assert torch.equal(*outputs)
