"""The variables by which other libraries know ranks, as torchrun sets them, in processes that
core's launchers make.
"""

from __future__ import annotations

import os

_MARK = "CORE_RANK_VARIABLES"
"""The values that core has set. A program that the process starts inherits them, and may be given
other ranks.
"""
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")


def rank_variables(
    *, world_size: int, global_rank: int, local_rank: int, node_rank: int, num_local: int
) -> dict[str, str]:
    """RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK, with a mark that core has set
    them.

    Args:
        world_size: number of processes.
        global_rank: number of this process.
        local_rank: its number on its node.
        node_rank: number of the node.
        num_local: processes on the node.
    """
    values = [str(number) for number in (global_rank, local_rank, world_size, num_local, node_rank)]
    return {**dict(zip(_NAMES, values, strict=True)), _MARK: ",".join(values)}


def are_set_by_core() -> bool:
    """True if the variables were set by core itself, not by a scheduler or launcher."""
    mark = os.environ.get(_MARK)
    return mark is not None and mark == ",".join(os.environ.get(name, "") for name in _NAMES)
