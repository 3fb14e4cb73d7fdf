"""The ranks of test_exchange.py: loops by hand, after which they tell their weights or
gradients.
"""

import copy

import torch
from torch import nn

from core import ConfigurationError, ModuleError


def data(rows=8):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)).double()


def net(sparse=False):
    torch.manual_seed(0)
    return nn.Embedding(5, 2, sparse=sparse).double() if sparse else nn.Linear(3, 2).double()


def _set_up(rank, **options):
    fabric = rank.fabric(rank.backend.strategy(**options))
    module = net()
    model, optimizer = fabric.setup(
        module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    )
    return fabric, module, model, optimizer


def gradients(rank, options, num_backwards=1):
    """Gradients after so many backwards of one batch each."""
    fabric, module, model, _ = _set_up(rank, **options)
    for part in data()[fabric.global_rank :: fabric.world_size].chunk(num_backwards):
        fabric.backward(model(part).square().mean())
    found = module.weight.grad.clone()
    fabric.teardown()
    return found


def of_two_modules(rank):
    """Gradients of two modules, alike but for their names, after one backward through both."""
    fabric = rank.fabric()
    modules = [net(), net()]
    models = [fabric.setup(own, torch.optim.SGD(own.parameters(), lr=0.1))[0] for own in modules]
    batch = data()[fabric.global_rank :: fabric.world_size]
    fabric.backward(
        sum(factor * model(batch).square().mean() for factor, model in enumerate(models, 1))
    )
    found = [own.weight.grad.clone() for own in modules]
    fabric.teardown()
    return found


def step_before_all_passes(rank):
    """Weights after a step that comes before the third backward, which would have exchanged
    gradients.
    """
    fabric, module, model, optimizer = _set_up(rank, backward_passes_per_step=3)
    for part in data()[fabric.global_rank :: fabric.world_size].chunk(2):
        fabric.backward(model(part).square().mean())
    optimizer.step()
    found = module.weight.detach().clone()
    fabric.teardown()
    return found


def second_sum(rank):
    """The message of a backward that adds to a sum."""
    try:
        gradients(rank, {"op": "Sum"}, num_backwards=2)
    except ConfigurationError as error:
        return str(error)


def parameter_of_one_rank(rank, options):
    """Gradients where only rank 0 uses a parameter, or the message of the refusal."""
    fabric = rank.fabric(rank.backend.strategy(**options))
    module = nn.ModuleList([net(), net(), net()])
    fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    batch = data()[fabric.global_rank :: fabric.world_size]
    try:
        loss = module[0](batch).square().mean()
        if fabric.global_rank == 0:
            loss = loss + module[1](batch).square().mean()
        fabric.backward(loss)
    except ModuleError as error:
        return str(error)
    return [part.weight.grad for part in module]


def sparse_gradient(rank, as_dense):
    """The gradient of an embedding, whose rows other ranks use too, dense."""
    fabric = rank.fabric(rank.backend.strategy(sparse_as_dense=as_dense))
    module = net(sparse=True)
    model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.backward(model(torch.tensor([0, 1 + fabric.global_rank])).square().sum())
    found = module.weight.grad.to_dense().clone()
    fabric.teardown()
    return found


def state_of_rank_0(rank):
    """Momenta, learning rate and weights of an optimizer that was another one on each rank."""
    fabric, module = rank.fabric(), net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 * (rank.number + 1), weight_decay=0.5)
    before = copy.deepcopy(module.state_dict())
    fabric.setup(module, optimizer)
    untouched = torch.equal(module.weight, before["weight"]) and not optimizer.state
    fabric.teardown()

    fabric, module = rank.fabric(), net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    (module(data()).square().mean() * (rank.number + 1)).backward()
    optimizer.step()
    fabric.setup(module, optimizer)
    moments = optimizer.state[module.weight]
    found = (
        untouched,
        optimizer.param_groups[0]["lr"],
        moments["exp_avg"].clone(),
        float(moments["step"]),
    )
    fabric.teardown()
    return found


def scaled_rate(rank, scales):
    """The learning rate after set-up, or the message of the refusal where a scheduler has noted
    it.
    """
    fabric, module = rank.fabric(rank.backend.strategy(scale_learning_rate=scales)), net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    fabric.setup(module, optimizer)
    scheduled = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    try:
        fabric.setup_optimizers(scheduled)
        message = ""
    except ConfigurationError as error:
        message = str(error)
    fabric.teardown()
    return optimizer.param_groups[0]["lr"], message


def channels_last(rank):
    """The message of the refusal of a parameter that isn't contiguous."""
    fabric, module = rank.fabric(), nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    try:
        fabric.backward(model(torch.ones(1, 2, 4, 4)).sum())
    except ConfigurationError as error:
        return str(error)
