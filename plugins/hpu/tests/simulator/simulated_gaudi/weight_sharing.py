"""`module.to("hpu")` in lazy mode: the module gets other parameter objects, and names that shared
one still do.

The vendor's published source, github.com/HabanaAI/gaudi-pytorch-bridge 1.19,
core/weight_sharing.py:123-240, patches `nn.Module.to` (core/__init__.py:134). There a table leads
from an old object to the new one when attributes of it are read; here the old one stays on the
host: nobody is to rely on the table.
"""

import torch

from simulated_gaudi import graph


def register():
    if graph.IS_LAZY:
        torch.nn.Module.to = _to(torch.nn.Module.to)


def _to(original):
    def to(self, *args, **kwargs):
        device, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            _replace_parameters(self, device)
        return original(self, *args, **kwargs)

    return to


def _replace_parameters(module, device):
    others = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.device.type != device.type:
                if id(parameter) not in others:
                    copy = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                    copy.grad = parameter.grad
                    # the old one too: while it lives, its identity is its own
                    others[id(parameter)] = copy, parameter
                part._parameters[name] = others[id(parameter)][0]
