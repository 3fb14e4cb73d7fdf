"""`fabric.step` is the loss and backward, in one line."""

import pytest
import torch

from core import Fabric, ModuleError


def loss_of(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize("step", ["backward", "step", "weighted"])
def test_it_trains_as_the_same_loop_without_fabric(step):
    def weighted(model, batch):
        return {"loss": loss_of(model, batch), "weight": len(batch)}

    def loss_and_backward(model, batch, backward=torch.Tensor.backward):
        loss = loss_of(model, batch)
        backward(loss)
        return loss

    steps = {
        "backward": lambda fabric: (
            lambda model, batch: loss_and_backward(model, batch, fabric.backward)
        ),
        "step": lambda fabric: lambda model, batch: fabric.step(model, batch, loss_of),
        "weighted": lambda fabric: lambda model, batch: fabric.step(model, batch, weighted),
    }

    def trained(step, set_up):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        model, optimizer = set_up(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        losses = []
        for batch in torch.randn(3, 4, 3):
            losses.append(float(step(model, batch).detach()))
            optimizer.step()
            optimizer.zero_grad()
        return losses, model.weight.tolist()

    fabric = Fabric(accelerator="cpu")
    assert trained(steps[step](fabric), fabric.setup) == trained(
        loss_and_backward, lambda *parts: parts
    )


def test_the_loss_has_no_graph():
    fabric = Fabric(accelerator="cpu")
    assert not fabric.step(
        fabric.setup(torch.nn.Linear(3, 1)), torch.ones(2, 3), loss_of
    ).requires_grad


@pytest.mark.parametrize(
    "returned",
    [
        lambda loss: None,
        lambda loss: loss.detach(),
        lambda loss: loss.expand(2),
        lambda loss: {"weight": 2},
    ],
    ids=["nothing", "no graph", "two", "a weight alone"],
)
def test_something_else_than_a_loss(returned):
    fabric = Fabric(accelerator="cpu")
    model = fabric.setup(torch.nn.Linear(3, 1))
    with pytest.raises(
        ModuleError, match=r"loss_fn returned .*; expected a scalar tensor with a graph, or a dict"
    ):
        fabric.step(model, torch.ones(2, 3), lambda model, batch: returned(loss_of(model, batch)))
