"""Parameters that a move to a device replaces."""

import torch
from torch import nn

from core.session import ReplacedParameters
from core.session.module_tree import tie_again
from core.session.replaced import beside


def tied():
    module = nn.ModuleDict({"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)})
    module["last"].weight = module["first"].weight
    return module


def replace_each(module):
    """As torch's `Module.to` does where a parameter can't take over the new memory."""
    for part in module.values():
        part.weight = nn.Parameter(part.weight.detach().clone())


def test_names_that_shared_a_parameter_share_its_successor():
    module = tied()
    before = dict(module.named_parameters(remove_duplicate=False))
    replace_each(module)
    assert list(tie_again(module, before)) == ["first.weight"]
    assert module["last"].weight is module["first"].weight is not before["first.weight"]


def test_an_optimizer_gets_the_successors_with_its_state():
    module = tied()
    old = module["first"].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.state[old]["momentum_buffer"] = momentum = torch.ones(2, 2)
    before = dict(module.named_parameters(remove_duplicate=False))
    replace_each(module)
    replaced = ReplacedParameters(beside)
    replaced.remember(module, tie_again(module, before).items())
    replaced.rebind(optimizer)
    new = module["first"].weight
    assert optimizer.param_groups[0]["params"][0] is new
    assert optimizer.state == {new: {"momentum_buffer": momentum}}
