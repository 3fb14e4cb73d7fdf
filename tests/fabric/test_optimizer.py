import pytest
import torch
from torch import nn

from core import Fabric
from core.fabric import FabricOptimizer


class Unusual(torch.optim.SGD):
    """Has something of its own besides what every optimizer has."""

    rate = 7

    def load_state_dict(self, state):
        self.loaded = True
        super().load_state_dict(state)


@pytest.fixture
def parts():
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu")
    net = nn.Linear(3, 1)
    own = Unusual(net.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(net, own)
    return fabric, model, optimizer, own


def step(fabric, model, optimizer):
    optimizer.zero_grad()
    fabric.backward(model(torch.ones(2, 3)).sum())
    optimizer.step()


def test_it_is_an_optimizer_that_shares_everything_with_the_users(parts):
    fabric, model, optimizer, own = parts
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer, FabricOptimizer)
    assert optimizer.optimizer is own
    before = model.weight.clone()
    step(fabric, model, optimizer)
    assert not torch.equal(before, model.weight)
    assert optimizer.state is own.state
    assert optimizer.param_groups is own.param_groups
    assert optimizer.rate == 7
    optimizer.rate = 8
    assert own.rate == 8


def test_state_goes_through_the_users_overrides_and_stays_shared(parts):
    fabric, model, optimizer, own = parts
    step(fabric, model, optimizer)
    state = optimizer.state_dict()
    assert state["state"][0]["momentum_buffer"].shape == (1, 3)
    optimizer.load_state_dict(state)
    assert own.loaded
    assert optimizer.param_groups is own.param_groups
    optimizer.param_groups[0]["lr"] = 0.0
    before = model.weight.clone()
    step(fabric, model, optimizer)
    assert torch.equal(before, model.weight)


def test_hooks_and_parameter_groups(parts):
    fabric, model, optimizer, own = parts
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
    step(fabric, model, optimizer)
    assert seen == ["after"]
    assert [group["lr"] for group in own.param_groups] == [0.1, 0.5]


@pytest.mark.parametrize("on_wrapper", [True, False])
@pytest.mark.filterwarnings("error")
def test_schedulers_of_torch_take_it(parts, on_wrapper):
    fabric, model, optimizer, own = parts
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        target := optimizer if on_wrapper else own,
        [
            torch.optim.lr_scheduler.ConstantLR(target, 0.5),
            torch.optim.lr_scheduler.ExponentialLR(target, 0.1),
        ],
        milestones=[2],
    )
    rates = []
    for _ in range(4):
        step(fabric, model, optimizer)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.05, 0.1, 0.01, 0.001])
    assert own.param_groups[0]["lr"] == rates[-1]


@pytest.mark.filterwarnings("error")
def test_a_scheduler_notices_that_no_step_was_made(parts):
    scheduler = torch.optim.lr_scheduler.StepLR(parts[2], 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_a_closure_gives_its_first_loss_back():
    fabric = Fabric(accelerator="cpu")
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 3.0)
    model, optimizer = fabric.setup(net, torch.optim.LBFGS(net.parameters(), max_iter=4))
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(model(torch.ones(1, 1)).square().sum())
        fabric.backward(losses[-1])
        return losses[-1]

    assert optimizer.step(closure) is losses[0]
    assert losses[0].item() == 9.0
    assert len(losses) > 1
    assert abs(net.weight.item()) < 1.0


def test_on_step_hears_whether_parameters_were_updated(parts):
    fabric, model, _, own = parts
    heard = []
    optimizer = fabric.wrap_optimizer(own, on_step=heard.append)
    step(fabric, model, optimizer)
    assert optimizer.step(lambda: None) is optimizer.step() is None
    assert heard == [True] * 3
