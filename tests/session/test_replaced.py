"""Parameters that a move to a device replaces."""

import torch
from torch import nn

from core.session import ReplacedParameters
from core.session.changed_modules import beside
from core.session.module_tree import tie_again


def test_an_optimizer_gets_the_successors_with_its_state_and_what_was_tied_is_tied_again():
    module = nn.ModuleDict({"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)})
    module["last"].weight = old = module["first"].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.state[old]["momentum_buffer"] = momentum = torch.ones(2, 2)
    before = dict(module.named_parameters(remove_duplicate=False))
    # as torch's `Module.to` does where a parameter can't take over the new memory
    for part in module.values():
        part.weight = nn.Parameter(part.weight.detach().clone())
    replaced, successors = ReplacedParameters(beside), tie_again(module, before)
    assert list(successors) == ["first.weight"]
    replaced.remember(module, successors.items())
    replaced.rebind(optimizer)
    new = module["first"].weight
    assert module["last"].weight is new is not old
    assert optimizer.param_groups[0]["params"][0] is new
    assert optimizer.state == {new: {"momentum_buffer": momentum}}
