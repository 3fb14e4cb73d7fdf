"""The `compile` argument, and modules that the user has compiled already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from core.contract import Strategy


def make_compilers(
    compile: bool | Mapping[str, object] | None, strategy: Strategy
) -> tuple[Any, Any]:
    """Make the compiler of a user's methods or, where a region is asked for, that of its parts;
    None for the other.

    The first is called with a method, and returns it compiled; the second with a module, whose
    parts it compiles in place, and returns a function that undoes it.

    Args:
        compile: whether to, or options of `torch.compile`, and `region`.
        strategy: that trains what is compiled.

    Raises:
        ConfigurationError: neither, an unknown option, or an unknown region.
        UnsupportedError: a region, and the strategy compiles whole steps.
    """
    if compile is None or compile is False:
        return None, None
    from core.fabric.compile_options import read_compile  # most leave it out

    return read_compile(compile, strategy)


def split_compiled(module: nn.Module) -> tuple[nn.Module, Callable[[Any], Any] | None]:
    """Split `torch.compile(module)` into the user's own module and a compiler that treats its
    methods likewise.

    A module that isn't compiled comes back as it is, with None.
    """
    if "torch._dynamo" not in sys.modules:  # not imported, so nothing was compiled
        return module, None
    if not isinstance(module, torch._dynamo.OptimizedModule):
        return module, None
    own: nn.Module = module._orig_mod
    return own, module.dynamo_ctx
