"""Parts of a compiled model outside of its graphs: exchanges of sequences, and experts with those of tokens."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from core_parallel import forwards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from core_parallel.context import Caught


class Apart:
    """Attention that sees the whole sequence, in eager mode between graphs.

    It is put in the place of torch's function: a mode of torch would be traced with all of the model.
    """

    def __init__(self) -> None:
        self._caught: Caught | None = None
        self._own = torch.compiler.disable(self._attend)  # one, since graphs are compiled for it

    @contextmanager
    def around(self, caught: Caught) -> Iterator[None]:
        """A context in which this one answers."""
        before = self._caught, functional.scaled_dot_product_attention
        self._caught, functional.scaled_dot_product_attention = caught, self._own
        try:
            yield
        finally:
            self._caught, functional.scaled_dot_product_attention = before

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        assert self._caught is not None, "it is called within the context"
        return self._caught.attend(*args, **kwargs)


def leave_out(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Leave modules with their hooks outside of graphs: how many tokens experts get changes from step to step.

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
    """A function or method that no graph has in it. A copy of its module has a method of its own."""
    if isinstance(call, MethodType):
        return MethodType(torch.compiler.disable(call.__func__), call.__self__)
    return torch.compiler.disable(call)


def _set_hook(hooks: dict[int, Any], key: int, hook: Any) -> None:
    if key in hooks:
        hooks[key] = hook
