"""The strategies that are planned for where the user names none."""

from __future__ import annotations

from core import Capability, CoreError
from core.registry import STRATEGY_REGISTRY, Status, listing

_MOST_TENSOR = 8
"""Tensor parallelism stays within a node, and few models have more heads of keys to cut."""
_MOST_PIPELINE = 8
"""Ranks, each of which is rehearsed by a process of its own."""


def installed_strategies(devices: int, num_nodes: int) -> list[str]:
    """Each installed strategy, once a class and without its presets, then layouts of core-parallel.

    One that trains on other devices only than the CPU, on which programs are rehearsed, isn't among
    them. Nor is an engine: it would run for real, which takes minutes.

    Args:
        devices: ranks a node.
        num_nodes: nodes.
    """
    by_target = {
        row.target: row.alias
        for row in reversed(listing("strategy"))
        if row.status is Status.OK and row.target.rpartition(":")[2][:1].isupper()
    }
    world_size = devices * num_nodes
    aliases = sorted(
        alias for alias in by_target.values() if alias != "parallel" and _serves(alias, world_size)
    )
    return aliases + (_parallel(devices, world_size) if "parallel" in STRATEGY_REGISTRY else [])


def _serves(alias: str, world_size: int) -> bool:
    if (alias == "single_device") is not (world_size == 1):
        return False
    try:
        strategy = STRATEGY_REGISTRY.create(alias)
    except CoreError:
        return True  # whose plan says why not
    is_engine = strategy.capabilities & (Capability.OWNS_STEP | Capability.JOINT_SETUP)
    return not is_engine and (not strategy.device_types or "cpu" in strategy.device_types)


def _parallel(devices: int, world_size: int) -> list[str]:
    """Layouts: sharded, cut by tensors, both, and a pipeline over so few ranks that each is
    rehearsed.
    """
    if world_size == 1:
        return []
    tensor = max(size for size in range(1, min(devices, _MOST_TENSOR) + 1) if devices % size == 0)
    found = [f"parallel:shard={world_size}"]
    if tensor > 1:
        found += [f"parallel:tensor={tensor}"]
        found += (
            [f"parallel:shard={world_size // tensor},tensor={tensor}"]
            if tensor < world_size
            else []
        )
    if world_size <= _MOST_PIPELINE and world_size % 2 == 0:
        rest = f",shard={world_size // 2}" if world_size > 2 else ""
        found += [f"parallel:pipeline=2{rest}"]
    return found
