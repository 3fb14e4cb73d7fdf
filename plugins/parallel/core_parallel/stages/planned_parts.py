"""The parts of a model by the pipeline plan of its config, as models of transformers have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core import ModuleError
from core_parallel.stages import named_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from core_parallel.stages.named_parts import Found

_PLAN = "base_model_pp_plan"


def find(user: nn.Module) -> list[Found]:
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
    plans = {
        name: getattr(getattr(one, "config", None), _PLAN, None) for name, one in modules.items()
    }
    planned = {name: plan for name, plan in plans.items() if plan}
    bases = {name: plan for name, plan in planned.items() if _has(modules[name], plan)}
    if planned and not bases:
        name, plan = next(iter(planned.items()))
        raise ModuleError(
            f"{type(modules[name]).__name__} has a config whose {_PLAN} names "
            f"{', '.join(map(repr, plan))}, and no module has them all. Name the parts by "
            "pipeline() in a module of your own, or by parts=."
        )
    return [named_parts.find(user, _names(name, plan, modules)) for name, plan in bases.items()]


def _has(module: nn.Module, names: Iterable[str]) -> bool:
    return {*names} <= dict(module.named_modules(remove_duplicate=False)).keys()


def _names(name: str, plan: Iterable[str], modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of the parts: of a list those in it, and of the class around it its heads."""
    named = [f"{name}.{one}".lstrip(".") for one in plan]
    above = name.rpartition(".")[0]
    heads = getattr(modules[above], "_pp_plan", None) or ()
    if name and _has(modules[above], heads):
        named += [f"{above}.{one}".lstrip(".") for one in heads]
    # the class around it has the plan of the base too
    return [one + ".*" * isinstance(modules[one], nn.ModuleList) for one in dict.fromkeys(named)]
