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
        What undoes it.
    """
    left_out = {one: _outside(one.forward) for one in modules}
    undo: list[Callable[[], None]] = [partial(forwards.put, forwards.own(left_out))]
    forwards.put(left_out)
    for module in left_out:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in hooks.items():
                hooks[key] = _outside(hook)
                undo.append(partial(_set_hook, hooks, key, hook))

    def restore() -> None:
        for one in undo:
            one()

    return restore


def _outside(call: Any) -> Any:
    """A function or method that no graph has in it. A copy of its module has a method of its
    own.
    """
    if isinstance(call, MethodType):
        return MethodType(torch.compiler.disable(call.__func__), call.__self__)
    return torch.compiler.disable(call)


def _set_hook(hooks: dict[int, Any], key: int, hook: Any) -> None:
    if key in hooks:
        hooks[key] = hook
