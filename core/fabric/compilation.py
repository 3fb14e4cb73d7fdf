"""The `compile` argument, and modules that the user has compiled already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability, ConfigurationError, UnsupportedError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from core.contract import Strategy

_OPTIONS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


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
    if compile is True:
        return torch.compile, None
    if not isinstance(compile, Mapping):
        raise ConfigurationError(
            f"compile={compile!r}: expected True, False, or a dict of torch.compile's options: "
            f"{', '.join(_OPTIONS)}."
        )
    options = {name: value for name, value in compile.items() if name != "region"}
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(str(name), (*_OPTIONS, "region"))
            raise ConfigurationError(
                f"compile has {name!r}, which torch.compile doesn't take.{hint} It takes "
                f"{', '.join(_OPTIONS)}; and core takes 'region'."
            )
    region: Any = compile.get("region")
    if region is None:
        return partial(torch.compile, **options), None
    is_list = isinstance(region, Iterable) and not isinstance(region, str | type)
    if region != "units" and not (is_list and all(isinstance(item, str | type) for item in region)):
        raise ConfigurationError(
            f"compile has region={region!r}: expected 'units', or a list of layer classes and of "
            "names of classes or modules. Leave it out to compile whole steps."
        )
    if Capability.COMPILED_STEP in strategy.capabilities:
        raise UnsupportedError(
            f"{type(strategy).__name__} runs forward, backward and update as one compiled program, "
            "of which no part is compiled by itself. Leave 'region' out of compile, or use another "
            "strategy.",
            capability=Capability.COMPILED_STEP,
        )
    return None, partial(compile_units, region=region, options=options)


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


def compile_units(
    module: nn.Module, *, region: Any, options: Mapping[str, Any]
) -> Callable[[], None]:
    """All ranks. Compile the forward of units, each when it is called first. Names and classes stay
    as they are.

    torch compiles the code of a class for all its instances, as long as shapes and formats are the
    same.

    Args:
        module: the user's.
        region: `"units"`, or a list of what is compiled.
        options: of `torch.compile`.

    Returns:
        A function that undoes it.

    Raises:
        ConfigurationError: the module has no such parts.
    """
    from core.strategies import find_units  # most compile no units

    asked_by = f"compile={{'region': {region!r}}}"
    if region == "units":
        region = None
    units = find_units(module, region, asked_by=asked_by).named.values()
    before = [(unit, unit._compiled_call_impl) for unit in units]
    for unit in units:
        # What `nn.Module.compile` sets too: a copy of the module leaves it out.
        unit._compiled_call_impl = partial(_call, unit, torch.compile(unit.forward, **options))
    return partial(_restore, before)


def _call(
    unit: nn.Module, compiled: Callable[..., object], /, *args: object, **kwargs: object
) -> object:
    """Call a unit, hooks and all, with another forward.

    `nn.Module.compile` would trace the hooks too: those that gather parameters or compute
    activations again interrupt a graph. And it leaves out layers of torch's own.
    """
    attributes = vars(unit)
    own = attributes.get("forward")
    attributes["forward"] = compiled
    try:
        return unit._call_impl(*args, **kwargs)
    finally:
        del attributes["forward"]
        if own is not None:
            attributes["forward"] = own


def _restore(before: Iterable[tuple[nn.Module, Callable[..., object] | None]]) -> None:
    for unit, compiled in before:
        unit._compiled_call_impl = compiled
