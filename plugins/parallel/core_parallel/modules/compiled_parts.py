"""Modules compiled one by one, where a step goes over several ranks in the middle."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from core_parallel.modules import forwards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from torch import nn


def uncompiled() -> AbstractContextManager[Any]:
    """A context in which what is compiled runs as it is."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def compile_parts(
    modules: Iterable[nn.Module], compiler: Callable[[Any], Any]
) -> Callable[[], None]:
    """Compile the forward of modules, in place.

    Args:
        modules: parts of this rank's stages, or what sees a part of the sequence.
        compiler: such as `torch.compile`.

    Returns:
        What undoes it.
    """
    compiled = {one: _compiled(one, compiler) for one in dict.fromkeys(modules)}
    before = forwards.own(compiled)
    forwards.put(compiled)
    return partial(forwards.put, before)


def _compiled(module: nn.Module, compiler: Callable[[Any], Any]) -> Any:
    forward: Any = module.forward
    if isinstance(forward, MethodType) and forward.__self__ is module:
        # a copy of the module has its own, with its own weights
        return MethodType(compiler(forward.__func__), module)
    return compiler(forward)
