"""The `compile` argument, and modules that the user has compiled already."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.contract import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_OPTIONS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


def make_compiler(compile: bool | Mapping[str, Any] | None) -> Callable[[Any], Any] | None:
    """Make the compiler that a user's methods go through before they are called, or None.

    Args:
        compile: whether to, or options of `torch.compile`.

    Raises:
        ConfigurationError: neither, or an unknown option.
    """
    if compile is None or compile is False:
        return None
    if compile is True:
        return torch.compile
    if not isinstance(compile, Mapping):
        raise ConfigurationError(
            f"compile={compile!r}: expected True, False, or a dict of torch.compile's options: {', '.join(_OPTIONS)}."
        )
    if unknown := [name for name in compile if name not in _OPTIONS]:
        hint = did_you_mean(str(unknown[0]), _OPTIONS)
        raise ConfigurationError(
            f"compile has {unknown[0]!r}, which torch.compile doesn't take.{hint} It takes {', '.join(_OPTIONS)}."
        )
    if compile.get("mode") is not None and compile.get("options") is not None:
        raise ConfigurationError("compile has both 'mode' and 'options', of which torch.compile takes one.")
    return partial(torch.compile, **compile)


def split_compiled(module: nn.Module) -> tuple[nn.Module, Callable[[Any], Any] | None]:
    """Split `torch.compile(module)` into the user's own module and a compiler that treats its methods likewise.

    A module that isn't compiled comes back as it is, with None.
    """
    if "torch._dynamo" not in sys.modules:  # not imported, so nothing was compiled
        return module, None
    if not isinstance(module, torch._dynamo.OptimizedModule):
        return module, None
    own: nn.Module = module._orig_mod
    return own, module.dynamo_ctx
