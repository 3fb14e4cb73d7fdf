"""`fabric.step` is the loss and backward, in one line."""

import pytest
import torch

from core import Fabric, ModuleError


def trained(step):
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu")
    model = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches = torch.randn(3, 4, 3)
    losses = []
    for batch in batches:
        losses.append(float(step(fabric, model, batch).detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses, model.weight.detach().clone()


def loss_of(model, batch):
    return model(batch).square().mean()


def by_hand(fabric, model, batch):
    loss = loss_of(model, batch)
    fabric.backward(loss)
    return loss


def weighted(model, batch):
    return {"loss": loss_of(model, batch), "weight": len(batch)}


@pytest.mark.parametrize("loss_fn", [loss_of, weighted])
def test_it_is_forward_loss_and_backward(loss_fn):
    losses, weight = trained(lambda fabric, model, batch: fabric.step(model, batch, loss_fn))
    expected, expected_weight = trained(by_hand)
    assert losses == expected
    assert torch.equal(weight, expected_weight)


def test_the_loss_has_no_graph():
    fabric = Fabric(accelerator="cpu")
    assert not fabric.step(fabric.setup(torch.nn.Linear(3, 1)), torch.ones(2, 3), loss_of).requires_grad


@pytest.mark.parametrize(
    "returned",
    [lambda loss: None, lambda loss: loss.detach(), lambda loss: loss.expand(2), lambda loss: {"weight": 2}],
    ids=["nothing", "no graph", "two", "a weight alone"],
)
def test_something_else_than_a_loss(returned):
    fabric = Fabric(accelerator="cpu")
    model = fabric.setup(torch.nn.Linear(3, 1))
    with pytest.raises(ModuleError, match=r"loss_fn returned .*; expected a scalar tensor with a graph, or a dict"):
        fabric.step(model, torch.ones(2, 3), lambda model, batch: returned(loss_of(model, batch)))
