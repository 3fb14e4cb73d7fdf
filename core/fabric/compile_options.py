"""The `compile` argument: options of `torch.compile`, and the region that is compiled. Loaded where
it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability, ConfigurationError, Strategy, UnsupportedError, did_you_mean
from core.strategies import find_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

_OPTIONS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


def read_compile(
    compile: object, strategy: Strategy
) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """The compiler of methods, or the compiler of parts, that a user asks for; see
    `make_compilers`.
    """
    if compile is True:
        return torch.compile, None
    if not isinstance(compile, Mapping):
        raise ConfigurationError(
            f"compile={compile!r}: expected True, False, or a dict of torch.compile's options: "
            f"{', '.join(_OPTIONS)}."
        )
    options = {name: value for name, value in compile.items() if name != "region"}
    _check_options(options)
    region = compile.get("region")
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


def _check_options(options: Mapping[str, object]) -> None:
    if unknown := [name for name in options if name not in _OPTIONS]:
        hint = did_you_mean(str(unknown[0]), (*_OPTIONS, "region"))
        raise ConfigurationError(
            f"compile has {unknown[0]!r}, which torch.compile doesn't take.{hint} It takes "
            f"{', '.join(_OPTIONS)}; and core takes 'region'."
        )
    if options.get("mode") is not None and options.get("options") is not None:
        raise ConfigurationError(
            "compile has both 'mode' and 'options', of which torch.compile takes one. Leave one of "
            "them out."
        )


def refuse_both(module: nn.Module) -> None:
    """Refuse a module that the user has compiled as a whole."""
    raise ConfigurationError(
        f"torch.compile({type(module).__name__}) compiles the whole module, and "
        f"compile={{'region': ...}} parts of it. Keep one of them."
    )


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
    listed = None if region == "units" else region
    units = find_units(module, listed, asked_by=f"compile={{'region': {region!r}}}").named.values()
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
        if own is None:
            attributes.pop("forward", None)
        else:
            attributes["forward"] = own


def _restore(before: Iterable[tuple[nn.Module, Callable[..., object] | None]]) -> None:
    for unit, compiled in before:
        unit._compiled_call_impl = compiled
