"""The parts of a model that says none: its repeated blocks. What is before and behind them is computed on all ranks."""

from __future__ import annotations

from torch import nn

from core.strategies import find_units
from core_parallel.stages import named_parts


def find(user: nn.Module, within: str = "") -> list[tuple[str, nn.Module, list[nn.Module]]]:
    """The innermost module that is called with all parameters and blocks in it: name, module, and its blocks.

    Args:
        user: the user's module, whose units count. Without a forward, it isn't called itself.
        within: name of the module in it that counts alone.

    Returns:
        None of them if there are fewer than two blocks, or they are in several modules of one that has no forward.
    """
    top, prefix = user.get_submodule(within), f"{within}." if within else ""
    blocks = {prefix + name: block for name, block in find_units(top).named.items()}
    modules = dict(user.named_modules())
    everything = [prefix + name for name, _ in top.named_parameters(remove_duplicate=False)]
    name = named_parts.innermost(modules, [*everything, *blocks])
    if len(blocks) < 2 or not named_parts.is_called(modules[name]):
        return []
    return [(name, modules[name], [*blocks.values()])]
