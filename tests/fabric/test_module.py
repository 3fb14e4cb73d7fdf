import copy
import pickle

import pytest
import torch
from torch import nn

from core import Fabric, ModuleError
from core.fabric import FabricModule
from core.strategies import SingleDeviceStrategy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(()))
        self.rate = 0.5

    def forward(self, x, *, scale=1.0):
        return self.inner(x) * scale

    def training_step(self, batch, batch_idx):
        return self(batch).sum() + batch_idx

    def embed(self, x):
        return self.inner(x)

    def num_parameters(self):
        return sum(parameter.numel() for parameter in self.parameters())

    def state_dict(self, *args, **kwargs):
        return {**super().state_dict(*args, **kwargs), "extra": torch.ones(())}

    def load_state_dict(self, state_dict, *args, **kwargs):
        return super().load_state_dict(
            {key: state_dict[key] for key in state_dict if key != "extra"}, *args, **kwargs
        )


class Wrapper(nn.Module):
    """Notes what goes through it."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.calls = []

    def forward(self, *args, name="forward", **kwargs):
        self.calls.append(name)
        return (self.module if name == "forward" else getattr(self.module, name))(*args, **kwargs)


class WrappingStrategy(SingleDeviceStrategy):
    def setup_module(self, module):
        self.model = Wrapper(super().setup_module(module))
        return self.model

    def step_callable(self, name, module=None):
        wrapped = self.session.handle_of(module).wrapped
        return lambda *args, **kwargs: wrapped(*args, name=name, **kwargs)


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def model(net):
    return Fabric(accelerator="cpu").setup(net)


@pytest.fixture
def wrapped(net):
    return Fabric(accelerator="cpu", strategy=WrappingStrategy()).setup(net)


def test_it_is_a_module_that_computes_what_the_users_does(net, model):
    x = torch.rand(4, 3)
    assert isinstance(model, nn.Module)
    assert isinstance(model, FabricModule)
    assert model.module is net
    assert torch.equal(model(x, scale=2.0), net(x, scale=2.0))
    assert torch.equal(model.forward(x), net(x))


def test_names_and_parameters_are_the_users_own(net, wrapped):
    assert list(wrapped.state_dict()) == ["count", "inner.weight", "inner.bias", "extra"]
    assert dict(wrapped.named_parameters()).keys() == {"inner.weight", "inner.bias"}
    assert next(iter(wrapped.parameters())) is net.inner.weight
    assert list(wrapped.modules()) == [net, net.inner]
    assert wrapped.get_submodule("inner") is net.inner


def test_state_goes_through_the_users_overrides(net, wrapped):
    state = {key: torch.full_like(value, 3.0) for key, value in wrapped.state_dict().items()}
    wrapped.load_state_dict(state)
    assert net.inner.weight.unique().tolist() == [3.0]


def test_attributes_are_read_and_set_on_the_users_module(net, model):
    assert model.rate == 0.5
    model.rate = 0.25
    model.inner = nn.Linear(3, 1)
    assert net.rate == 0.25
    assert net.inner.out_features == 1
    assert model(torch.rand(1, 3)).shape == (1, 1)
    del model.rate
    assert not hasattr(net, "rate")
    assert "num_parameters" in dir(model)
    assert "Linear(in_features=3" in repr(model)


def test_an_attribute_that_is_not_there_names_the_users_class(model):
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        _ = model.missing


def test_methods_that_return_the_module_return_the_wrapper(net, model):
    assert model.eval() is model
    assert not net.training
    assert not model.training
    assert model.train() is model
    assert model.requires_grad_(False) is model
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_hooks_registered_on_either_run_once(net, wrapped):
    seen = []
    net.register_forward_hook(lambda *_: seen.append("own"))
    wrapped.register_forward_pre_hook(lambda *_: seen.append("wrapper"))
    wrapped(torch.rand(1, 3))
    assert seen == ["wrapper", "own"]


def test_a_copy_is_a_copy_of_the_users_module(net, wrapped):
    for clone in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(clone) is Net
        with torch.no_grad():
            clone.inner.weight.fill_(1.0)
            clone.inner.bias.zero_()
        assert clone(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]
    assert net.inner.weight.unique().numel() > 1


def test_it_may_be_a_part_of_another_module(net, model):
    whole = nn.Sequential(model, nn.Linear(2, 1))
    assert whole(torch.rand(4, 3)).shape == (4, 1)
    assert "0.inner.weight" in whole.state_dict()
    assert len(list(whole.parameters())) == 4


# Methods ------------------------------------------------------------------------------------------


def test_steps_go_through_the_strategys_wrapper(wrapped):
    assert wrapped.training_step(torch.ones(2, 3), 1).requires_grad
    wrapped(torch.ones(2, 3))
    assert wrapped.wrapped.calls == ["training_step", "forward"]


def test_other_methods_are_called_as_they_are(wrapped):
    assert wrapped.num_parameters() == 8
    assert wrapped.wrapped.calls == []


def test_a_method_that_computes_past_the_wrapper_is_refused(wrapped):
    with pytest.raises(ModuleError) as raised:
        wrapped.embed(torch.ones(1, 3))
    assert "Net.embed() computes with gradients, which WrappingStrategy can't see" in str(
        raised.value
    )
    assert "Call model.mark_forward_method('embed')" in str(raised.value)
    with torch.no_grad():
        assert wrapped.embed(torch.ones(1, 3)).shape == (1, 2)
    Net().embed(torch.ones(1, 3))


@pytest.mark.parametrize(
    "marked", [lambda wrapped: "embed", lambda wrapped: wrapped.embed], ids=["name", "method"]
)
def test_a_marked_method_goes_through_the_wrapper(wrapped, marked):
    wrapped.mark_forward_method(marked(wrapped))
    assert wrapped.embed(torch.ones(1, 3)).requires_grad
    assert wrapped.wrapped.calls == ["embed"]


def test_a_method_that_is_not_there_can_not_be_marked(wrapped):
    with pytest.raises(
        ModuleError, match=r"mark_forward_method\('embd'\): Net has no method of this name"
    ):
        wrapped.mark_forward_method("embd")


def test_without_a_wrapper_every_method_may_compute(model):
    assert model.embed(torch.ones(1, 3)).requires_grad


# Precision ----------------------------------------------------------------------------------------


def test_steps_and_forward_run_in_the_precisions_context(net):
    net.training_step = lambda batch, batch_idx: net(batch).dtype
    model = Fabric(accelerator="cpu", precision="bf16-mixed").setup(net)
    assert model(torch.rand(1, 3)).dtype == torch.bfloat16
    assert model.training_step(torch.rand(1, 3), 0) == torch.bfloat16
    assert net(torch.rand(1, 3)).dtype == torch.float32
    assert net.inner.weight.dtype == torch.float32


def test_inputs_are_converted_also_nested_and_by_name():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, batch, *, extra):
            return batch["x"].dtype, batch["index"].dtype, extra[0].dtype

    model = Fabric(accelerator="cpu", precision="bf16-true").setup(Sum())
    dtypes = model({"x": torch.rand(1), "index": torch.arange(1)}, extra=[torch.rand(1)])
    assert dtypes == (torch.bfloat16, torch.int64, torch.bfloat16)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_torch_compile_before_or_after(net, compiled_first):
    fabric = Fabric(accelerator="cpu")
    options = {"backend": "aot_eager", "fullgraph": not compiled_first}
    if compiled_first:
        model = fabric.setup(torch.compile(net, **options))
    else:
        model = torch.compile(fabric.setup(net), **options)
    x = torch.rand(4, 3)
    assert torch.allclose(model(x), net(x))
    fabric.backward(model(x).sum(), model=model)
    assert net.inner.weight.grad is not None
