"""The parts of a model that says none: its repeated blocks. What is before and behind them is
computed on all ranks.
"""

from __future__ import annotations

from torch import nn

from core.strategies import find_units
from core_parallel.stages import named_parts


def find(user: nn.Module, within: str = "") -> list[tuple[str, nn.Module, list[nn.Module]]]:
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
    top, prefix = user.get_submodule(within), f"{within}." if within else ""
    units, modules = find_units(top).named, dict(user.named_modules())
    named, inside = (
        list(top.named_parameters(remove_duplicate=False)),
        tuple(f"{name}." for name in units),
    )
    outside = {parameter for name, parameter in named if not name.startswith(inside)}
    blocks = {
        prefix + name: one for name, one in units.items() if outside.isdisjoint(one.parameters())
    }
    name = named_parts.innermost(modules, [*(prefix + name for name, _ in named), *blocks])
    if len(blocks) < 2 or not named_parts.is_called(modules[name]):
        return []
    return [(name, modules[name], [*blocks.values()])]
