"""The parts of a model by the pipeline plan of its config, as models of transformers have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    return [_with_head(name, plan, modules) for name, plan in bases.items()]


def _has(module: nn.Module, names: Iterable[str]) -> bool:
    return {*names} <= dict(module.named_modules(remove_duplicate=False)).keys()


def _with_head(name: str, plan: Iterable[str], modules: Mapping[str, nn.Module]) -> Found:
    parts = list(_expanded(modules[name], plan))
    above = name.rpartition(".")[0]
    heads = getattr(modules[above], "_pp_plan", None)
    if above == name or not heads or not _has(modules[above], heads):
        return name, modules[name], parts
    own = [one for one in _expanded(modules[above], heads) if one not in parts]
    return above, modules[above], [*parts, *own]


def _expanded(module: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    """The named modules, and of a list what is in it."""
    for name in names:
        part = module.get_submodule(name)
        if isinstance(part, nn.ModuleList):
            yield from part
        else:
            yield part
