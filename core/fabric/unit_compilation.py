"""Compilation of a model's units, each by itself, so that a block that repeats is compiled once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.contract import ConfigurationError
from core.strategies import find_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn


def refuse_both(module: nn.Module) -> None:
    """Refuse a module that the user has compiled as a whole."""
    raise ConfigurationError(
        f"torch.compile({type(module).__name__}) compiles the whole module, and compile={{'region': ...}} parts of it. "
        "Keep one of them."
    )


def compile_units(module: nn.Module, *, region: Any, options: Mapping[str, Any]) -> Callable[[], None]:
    """All ranks. Compile the forward of units, each when it is called first. Names and classes stay as they are.

    torch compiles the code of a class for all its instances, as long as shapes and formats are the same.

    Args:
        module: the user's.
        region: `"units"`, or a list of what is compiled.
        options: of `torch.compile`.

    Returns:
        A function that undoes it.

    Raises:
        ConfigurationError: the module has no such parts.
    """
    listed = None if region == "units" else region
    units = find_units(module, listed, asked_by=f"compile={{'region': {region!r}}}").named.values()
    before = [(unit, unit._compiled_call_impl) for unit in units]
    for unit in units:
        # What `nn.Module.compile` sets too: a copy of the module leaves it out.
        unit._compiled_call_impl = partial(_call, unit, torch.compile(unit.forward, **options))
    return partial(_restore, before)


def _call(unit: nn.Module, compiled: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    """Call a unit, hooks and all, with another forward.

    `nn.Module.compile` would trace the hooks too: those that gather parameters or compute activations again interrupt a
    graph. And it leaves out layers of torch's own.
    """
    attributes = vars(unit)
    own = attributes.get("forward")
    attributes["forward"] = compiled
    try:
        return unit._call_impl(*args, **kwargs)
    finally:
        if own is None:
            attributes.pop("forward", None)
        else:
            attributes["forward"] = own


def _restore(before: Iterable[tuple[nn.Module, Callable[..., object] | None]]) -> None:
    for unit, compiled in before:
        unit._compiled_call_impl = compiled
