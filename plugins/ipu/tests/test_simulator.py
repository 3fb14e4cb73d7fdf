"""The simulated PopTorch does what the vendor's pages say, and raises where they say so."""

import pytest
import torch
from torch import nn


@pytest.fixture
def poptorch(simulator):
    import poptorch

    return poptorch


class Model(nn.Module):
    """As in "Features", "poptorch.trainingModel": outputs, and the loss while it trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def forward(self, x, target):
        import poptorch

        out = self.layer(x)
        return out, poptorch.identity_loss(nn.functional.mse_loss(out, target), reduction="none")


def rows(number):
    return torch.randn(number, 3, generator=torch.Generator().manual_seed(1)), torch.ones(number, 1)


def test_the_hosts_weights_are_old_until_they_are_copied(poptorch):
    model = Model()
    before = model.layer.weight.detach().clone()
    executor = poptorch.trainingModel(model)
    executor(*rows(4))
    assert torch.equal(model.layer.weight, before)
    executor.copyWeightsToHost()
    assert not torch.equal(model.layer.weight, before)
    executor.destroy()


def test_what_was_compiled_stays(poptorch):
    executor = poptorch.inferenceModel(Model())
    executor(*rows(4))
    with pytest.raises(poptorch.Error, match="don't match"):
        executor(*rows(5))
    with pytest.raises(poptorch.Error, match="already attached"):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        executor.detachFromDevice()
    executor.destroy()
    with pytest.raises(poptorch.Error, match="has not been compiled or has been destroyed"):
        executor.copyWeightsToHost()


def test_the_optimizer_is_told_and_constants_stay(poptorch):
    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    before = model.layer.weight.detach().clone()
    executor(*rows(4))
    optimizer.param_groups[0]["lr"] = 1.0
    executor(*rows(4))
    executor.copyWeightsToHost()
    assert torch.equal(model.layer.weight, before), "nobody has called setOptimizer"
    executor.setOptimizer(optimizer)
    executor(*rows(4))
    executor.copyWeightsToHost()
    assert not torch.equal(model.layer.weight, before)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(poptorch.Error, match="constant"):
        executor.setOptimizer(optimizer)
    executor.destroy()


@pytest.mark.parametrize("name", ["distributed", "copyWeights", "AsyncOptions"])
def test_what_is_not_documented_raises(poptorch, name):
    for owner in (poptorch, poptorch.Options(), poptorch.inferenceModel(Model())):
        with pytest.raises(AttributeError, match=f"{name} isn't documented"):
            getattr(owner, name)
