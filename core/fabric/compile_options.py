"""The `compile` argument: options of `torch.compile`, and the region that is compiled. Loaded where it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability, ConfigurationError, Strategy, UnsupportedError, did_you_mean
from core.fabric.unit_compilation import compile_units

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


def read_compile(compile: object, strategy: Strategy) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """The compiler of methods, or the compiler of parts, that a user asks for; see `make_compilers`."""
    if compile is True:
        return torch.compile, None
    if not isinstance(compile, Mapping):
        raise ConfigurationError(
            f"compile={compile!r}: expected True, False, or a dict of torch.compile's options: {', '.join(_OPTIONS)}."
        )
    options = {name: value for name, value in compile.items() if name != "region"}
    _check_options(options)
    region = compile.get("region")
    if region is None:
        return partial(torch.compile, **options), None
    _check_region(region, strategy)
    return None, partial(compile_units, region=region, options=options)


def _check_options(options: Mapping[str, object]) -> None:
    if unknown := [name for name in options if name not in _OPTIONS]:
        hint = did_you_mean(str(unknown[0]), (*_OPTIONS, "region"))
        raise ConfigurationError(
            f"compile has {unknown[0]!r}, which torch.compile doesn't take.{hint} It takes {', '.join(_OPTIONS)}; "
            "and core takes 'region'."
        )
    if options.get("mode") is not None and options.get("options") is not None:
        raise ConfigurationError(
            "compile has both 'mode' and 'options', of which torch.compile takes one. Leave one of them out."
        )


def _check_region(region: Any, strategy: Strategy) -> None:
    is_list = isinstance(region, Iterable) and not isinstance(region, str | type)
    if region != "units" and not (is_list and all(isinstance(item, str | type) for item in region)):
        raise ConfigurationError(
            f"compile has region={region!r}: expected 'units', or a list of layer classes and of names of classes or "
            "modules. Leave it out to compile whole steps."
        )
    if Capability.COMPILED_STEP in strategy.capabilities:
        raise UnsupportedError(
            f"{type(strategy).__name__} runs forward, backward and update as one compiled program, of which no part is "
            "compiled by itself. Leave 'region' out of compile, or use another strategy.",
            capability=Capability.COMPILED_STEP,
        )
