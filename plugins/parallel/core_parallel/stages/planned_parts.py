"""The parts of a model by the pipeline plan of its config, as models of transformers have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PLAN = "base_model_pp_plan"


def find(user: nn.Module) -> list[tuple[str, nn.Module, list[nn.Module]]]:
    """The modules that a config plans for: name, module, and its parts in the order in which they
    are applied.

    Args:
        user: the user's module.

    Returns:
        One for each model: with a head, if the class that has it says so in `_pp_plan`.

    Raises:
        ModuleError: a plan names what no module has.
    """
    modules = dict(user.named_modules())
    planned = [(name, plan) for name, one in modules.items() if (plan := _plan_of(one))]
    bases = [(name, plan) for name, plan in planned if _has(modules[name], plan)]
    if planned and not bases:
        name, plan = planned[0]
        raise ModuleError(
            f"{type(modules[name]).__name__} has a config whose {_PLAN} names "
            f"{', '.join(map(repr, plan))}, and no module has them all. Name the parts by "
            "pipeline() in a module of your own, or by parts=."
        )
    return [_with_head(name, plan, modules) for name, plan in bases]


def _plan_of(module: nn.Module) -> Mapping[str, Any]:
    plan = getattr(getattr(module, "config", None), _PLAN, None)
    return plan if isinstance(plan, Mapping) else {}


def _has(module: nn.Module, names: Iterable[str]) -> bool:
    own = dict(module.named_modules(remove_duplicate=False))
    return all(name in own for name in names)


def _with_head(
    name: str, plan: Mapping[str, Any], modules: Mapping[str, nn.Module]
) -> tuple[str, nn.Module, list[nn.Module]]:
    parts = list(_expanded(modules[name], plan))
    above = name.rpartition(".")[0]
    heads = getattr(modules.get(above), "_pp_plan", None) if name else None
    if isinstance(heads, Mapping) and heads and _has(modules[above], heads):
        own = [
            part
            for part in _expanded(modules[above], heads)
            if all(part is not one for one in parts)
        ]
        return above, modules[above], [*parts, *own]
    return name, modules[name], parts


def _expanded(module: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    """The named modules, and of a list what is in it."""
    for name in names:
        part = module.get_submodule(name)
        if isinstance(part, nn.ModuleList):
            yield from part
        else:
            yield part
