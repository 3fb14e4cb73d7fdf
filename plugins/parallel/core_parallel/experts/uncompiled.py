"""Experts outside of the graphs of a compiled model: how many tokens they get changes from step to
step.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from core_parallel.modules import forwards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


def leave_out(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Leave modules with their hooks outside of graphs.

    Args:
        modules: of experts that are distributed.

    Returns:
        What undoes it of forwards; hooks stay, with the experts.
    """
    left_out = {one: _outside(one.forward) for one in modules}
    before = forwards.own(left_out)
    forwards.put(left_out)
    for module in left_out:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            hooks.update({key: _outside(hook) for key, hook in hooks.items()})
    return partial(forwards.put, before)


def _outside(call: Any) -> Any:
    """A function or method that no graph has in it. A copy of its module has a method of its
    own.
    """
    if isinstance(call, MethodType):
        return MethodType(torch.compiler.disable(call.__func__), call.__self__)
    return torch.compiler.disable(call)
