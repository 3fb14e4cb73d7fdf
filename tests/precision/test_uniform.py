import pytest
import torch
from torch import nn

from core.contract import ConfigurationError, NumberFormats
from core.precision import Precision, UniformPrecision, uniform

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
