"""The parts of a model that says none: its repeated blocks. What is before and behind them is
computed on all ranks.
"""

from __future__ import annotations

from torch import nn

from core.strategies import find_units
from core_parallel.stages import named_parts


def find(user: nn.Module, within: str = "") -> list[named_parts.Found]:
    """The innermost module that is called with all parameters and blocks in it: name, module, and
    its blocks.

    A block with a parameter that is used outside of blocks too, such as a tied embedding, counts as
    outside.

    Args:
        user: the user's module, whose units count. Without a forward, it isn't called itself.
        within: name of the module in it that counts alone.

    Returns:
        None of them if there are fewer than two blocks, or they are in several modules of one that
        has no forward.
    """
    top, modules = user.get_submodule(within), dict(user.named_modules())
    prefix = f"{within}.".lstrip(".")
    units = {prefix + name: one for name, one in find_units(top).named.items()}
    inside = tuple(f"{name}." for name in units)
    named = {prefix + name: one for name, one in top.named_parameters(remove_duplicate=False)}
    outside = {one for name, one in named.items() if not name.startswith(inside)}
    blocks = {name: one for name, one in units.items() if outside.isdisjoint(one.parameters())}
    owner = named_parts.innermost(modules, [*named, *blocks])
    if len(blocks) < 2 or not named_parts.is_called(modules[owner]):
        return []
    return [(owner, modules[owner], [*blocks.values()])]
