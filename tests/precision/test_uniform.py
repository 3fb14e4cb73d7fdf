import logging

import pytest
import torch
from torch import nn

from core.contract import ConfigurationError, ModuleError, NumberFormats
from core.precision import Precision, UniformPrecision, kept_in_float32, uniform

DTYPES = [(uniform.double, torch.float64, "64-true"), (uniform.float16, torch.float16, "16-true")]
DTYPES += [(uniform.bfloat16, torch.bfloat16, "bf16-true")]
each_dtype = pytest.mark.parametrize(("make", "dtype", "name"), DTYPES, ids=[name for *_, name in DTYPES])


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.spectrum = nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.linear(x - self.mean + torch.ones(4)) * self.spectrum.abs().to(x.dtype)


def train(precision, steps=3):
    """Losses of a few steps."""
    torch.manual_seed(0)
    module = precision.convert_module(Mixture())
    optimizer = torch.optim.AdamW(module.linear.parameters(), lr=0.1)
    context = precision.forward_context("cpu")
    losses = []
    for _ in range(steps):
        batch = precision.convert_input(torch.ones(3, 4))
        with context:
            loss = module(batch).square().mean()
        precision.backward(loss)
        assert precision.optimizer_step(optimizer)
        optimizer.zero_grad()
        losses.append(loss)
    return losses


@each_dtype
def test_a_module_trains_in_one_format(make, dtype, name):
    precision = make()
    losses = train(precision)
    assert precision.name == name
    assert all(loss.dtype == dtype for loss in losses)
    assert losses[-1] < losses[0]
    assert precision.formats == NumberFormats(dtype, dtype, dtype, dtype, scales_loss=False)
    assert torch.get_default_dtype() == torch.float32


@each_dtype
def test_only_what_floats_is_cast_and_each_parameter_stays_the_same_object(make, dtype, name):
    module = Mixture()
    before = list(module.parameters())
    converted = make().convert_module(module)
    assert converted is module
    assert all(one is other for one, other in zip(before, module.parameters(), strict=True))
    assert (module.linear.weight.dtype, module.mean.dtype) == (dtype, dtype)
    assert (module.count.dtype, module.spectrum.dtype) == (torch.int64, torch.complex64)
    assert module.spectrum.imag.tolist() == [1, 1]


class Model(nn.Module):
    """In the manner of transformers."""

    _keep_in_fp32_modules, _keep_in_fp32_modules_strict = {"wide"}, {"experts.*.gate"}

    def __init__(self):
        super().__init__()
        self.wide, self.experts = nn.Linear(1, 1, bias=False), nn.ModuleList([nn.ModuleDict({"gate": Scale()})])
        self.register_buffer("frequencies", torch.ones(1), persistent=False)


class Scale(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))
        self.register_buffer("mean", torch.zeros(1))


class Keeping(nn.Module):
    keep_in_float32 = ("*.router", "blocks.*.scale")

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.blocks = nn.ModuleList([nn.ModuleDict({"router": nn.Linear(1, 1), "other": nn.Linear(1, 1)}), Scale()])


LISTED = ["model.experts.0.gate.mean", "model.experts.0.gate.scale", "model.frequencies"]
NAMED = ["blocks.0.router.bias", "blocks.0.router.weight", "blocks.1.scale"]


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (uniform.double, []),
        (uniform.bfloat16, [*NAMED, *LISTED]),
        (uniform.float16, [*NAMED, *LISTED, "model.wide.weight"]),
    ],
)
def test_what_a_module_keeps_in_float32_stays_so(make, kept, caplog):
    precision = make()
    for is_built_in_it in (False, True):
        with precision.init_context() if is_built_in_it else torch.device("cpu"):
            module = Keeping()
        expected = sorted({*kept} - {"model.frequencies"}) if is_built_in_it else kept  # the user's own choice there
        module.blocks[1].scale.grad = torch.ones_like(module.blocks[1].scale)
        with caplog.at_level(logging.INFO, "core"):
            precision.convert_module(module)
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        assert sorted(name for name, one in tensors.items() if one.dtype == torch.float32) == expected
        assert {one.dtype for name, one in tensors.items() if name not in expected} == {precision.dtype}
        assert module.blocks[1].scale.grad.dtype == module.blocks[1].scale.dtype
        line = f"{precision.name} keeps {len(expected)} tensors in float32: "
        assert [each.getMessage().startswith(line) for each in caplog.records] == [True] * bool(expected)
        caplog.clear()


def test_what_the_layers_of_a_model_hold_in_float32_stays_so_if_it_was_made_in_16_bits():
    for is_built_in_it, kept in ((False, {}), (True, {"decay.scale"})):
        with uniform.bfloat16().init_context() if is_built_in_it else torch.device("cpu"):
            module = Model()
            module.decay, module.adapter = Scale(torch.float32), nn.Linear(1, 1, dtype=torch.float32)
        assert {*kept_in_float32(module, torch.bfloat16)} - {*kept_in_float32(Model(), torch.bfloat16)} == {*kept}


def test_a_name_to_be_kept_that_fits_nothing_is_an_error():
    module = Keeping()
    module.keep_in_float32 = "*.ruoter"
    with pytest.raises(ModuleError, match=r"keep_in_float32 of Keeping has '\*\.ruoter', and it has no mod"):
        uniform.bfloat16().convert_module(module)


@each_dtype
def test_inputs_that_float_are_cast(make, dtype, name):
    precision = make()
    assert precision.converts_input
    assert precision.convert_input(torch.ones(2)).dtype == dtype
    assert precision.convert_input(torch.ones(2, dtype=torch.int64)).dtype == torch.int64
    assert precision.convert_input(torch.ones(2, dtype=torch.bool)).dtype == torch.bool


@each_dtype
def test_contexts_can_be_entered_again_and_inside_themselves(make, dtype, name):
    precision = make()
    for context in (precision.init_context(), precision.forward_context("cpu")):
        for _ in range(2):
            with context, context:
                assert torch.zeros(1).dtype == dtype
            assert torch.zeros(1).dtype == torch.float32
        with pytest.raises(RuntimeError, match="boom"), context:
            raise RuntimeError("boom")
        assert torch.get_default_dtype() == torch.float32


def test_modules_are_built_in_the_format():
    with uniform.double().init_context():
        assert nn.Linear(2, 2).weight.dtype == torch.float64


def test_single_leaves_everything_as_it_is():
    precision = uniform.single()
    module = nn.Linear(2, 2).double()
    assert type(precision) is Precision
    assert precision.name == "32-true"
    assert precision.convert_module(module).weight.dtype == torch.float64
    assert precision.init_context() is None
    assert precision.forward_context("cpu") is None
    assert not precision.converts_input
    assert precision.formats == NumberFormats()


def test_a_compiled_step_sees_the_format():
    precision = uniform.double()
    module = precision.convert_module(nn.Linear(4, 2))
    step = torch.compile(lambda x: module(x) + torch.ones(2), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        with precision.forward_context("cpu"):
            assert step(torch.ones(1, 4)).dtype == torch.float64


def test_other_formats_are_refused():
    with pytest.raises(ConfigurationError, match=r"expected one of torch.float64.*For float32 leave"):
        UniformPrecision(torch.float32)
