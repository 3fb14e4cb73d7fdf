import logging

import pytest
import torch
from torch import nn

from core.contract import ConfigurationError, ModuleError, NumberFormats
from core.precision import Precision, UniformPrecision, kept_in_float32, uniform

DTYPES = [(uniform.double, torch.float64, "64-true"), (uniform.float16, torch.float16, "16-true")]
DTYPES += [(uniform.bfloat16, torch.bfloat16, "bf16-true")]
each_dtype = pytest.mark.parametrize(
    ("make", "dtype", "name"), DTYPES, ids=[name for *_, name in DTYPES]
)


@each_dtype
def test_each_name_is_a_format(make, dtype, name):
    assert make().name == name
    assert make().formats == NumberFormats(dtype, dtype, dtype, dtype, scales_loss=False)


class Model(nn.Module):
    """In the manner of transformers."""

    _keep_in_fp32_modules, _keep_in_fp32_modules_strict = {"wide"}, {"experts.*.gate"}

    def __init__(self):
        super().__init__()
        self.wide, self.experts = (
            nn.Linear(1, 1, bias=False),
            nn.ModuleList([nn.ModuleDict({"gate": Scale()})]),
        )
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
        self.blocks = nn.ModuleList(
            [nn.ModuleDict({"router": nn.Linear(1, 1), "other": nn.Linear(1, 1)}), Scale()]
        )


LISTED = ["model.experts.0.gate.mean", "model.experts.0.gate.scale", "model.frequencies"]
NAMED = ["blocks.0.router.bias", "blocks.0.router.weight", "blocks.1.scale"]


@pytest.mark.parametrize("is_built_in_it", [False, True])
@pytest.mark.parametrize(
    ("precision", "kept"),
    [
        (uniform.double(), []),
        (uniform.bfloat16(), [*NAMED, *LISTED]),
        (uniform.float16(), [*NAMED, *LISTED, "model.wide.weight"]),
    ],
    ids=["64", "bf16", "16"],
)
def test_what_a_module_keeps_in_float32_stays_so(precision, kept, is_built_in_it, caplog):
    with precision.init_context() if is_built_in_it else torch.device("cpu"):
        module = Keeping()
    if is_built_in_it:
        kept = [name for name in kept if name != "model.frequencies"]  # the user's own choice there
    scale = module.blocks[1].scale
    scale.grad = torch.ones_like(scale)
    with caplog.at_level(logging.INFO, "core"):
        precision.convert_module(module)
    dtypes = {
        name: one.dtype for name, one in [*module.named_parameters(), *module.named_buffers()]
    }
    assert dtypes == {name: torch.float32 if name in kept else precision.dtype for name in dtypes}
    assert {*kept} < {*dtypes}
    assert scale.grad.dtype == scale.dtype
    said = [message.partition(": ")[0] for message in caplog.messages]
    assert said == [f"{precision.name} keeps {len(kept)} tensors in float32"] * bool(kept)


@pytest.mark.parametrize(("is_built_in_it", "kept"), [(False, {}), (True, {"decay.scale"})])
def test_what_layers_hold_in_float32_stays_so_if_the_model_was_made_in_16_bits(
    is_built_in_it, kept
):
    with uniform.bfloat16().init_context() if is_built_in_it else torch.device("cpu"):
        module = Model()
        module.decay, module.adapter = Scale(torch.float32), nn.Linear(1, 1, dtype=torch.float32)
    assert {*kept_in_float32(module, torch.bfloat16)} - {
        *kept_in_float32(Model(), torch.bfloat16)
    } == {*kept}


def test_a_name_to_be_kept_that_fits_nothing_is_an_error():
    module = Keeping()
    module.keep_in_float32 = "*.ruoter"
    with pytest.raises(
        ModuleError, match=r"keep_in_float32 of Keeping has '\*\.ruoter', and it has no mod"
    ):
        uniform.bfloat16().convert_module(module)


@pytest.mark.parametrize("given", [torch.float32, torch.int64, torch.bool])
def test_only_inputs_that_float_are_cast(given):
    converted = uniform.double().convert_input(torch.ones(2, dtype=given))
    assert converted.dtype == (torch.float64 if given.is_floating_point else given)


@pytest.mark.parametrize(
    "context", [uniform.double().init_context(), uniform.double().forward_context("cpu")]
)
def test_contexts_can_be_entered_again_and_inside_themselves(context):
    for _ in range(2):
        with context, context:
            assert torch.zeros(1).dtype == torch.float64
        assert torch.zeros(1).dtype == torch.float32
    with pytest.raises(RuntimeError, match="boom"), context:
        raise RuntimeError("boom")
    assert torch.get_default_dtype() == torch.float32


def test_single_leaves_everything_as_it_is():
    precision = uniform.single()
    assert (type(precision), precision.name, precision.formats) == (
        Precision,
        "32-true",
        NumberFormats(),
    )
    assert precision.convert_module(nn.Linear(2, 2).double()).weight.dtype == torch.float64
    assert (
        precision.init_context(),
        precision.forward_context("cpu"),
        precision.converts_input,
    ) == (None, None, False)


def test_a_compiled_step_sees_the_format():
    precision = uniform.double()
    module = precision.convert_module(nn.Linear(4, 2))
    step = torch.compile(lambda x: module(x) + torch.ones(2), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        with precision.forward_context("cpu"):
            assert step(torch.ones(1, 4)).dtype == torch.float64


def test_other_formats_are_refused():
    with pytest.raises(
        ConfigurationError, match=r"expected one of torch.float64.*For float32 leave"
    ):
        UniformPrecision(torch.float32)
