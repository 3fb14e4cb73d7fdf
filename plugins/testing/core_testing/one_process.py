"""Ranks without processes, for tests of what ranks compute and say to each other."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from core_testing.thread_group import ThreadedWorld, several_ranks
from core_testing.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable


def in_one_process(
    function: Callable[..., Any], *args: Any, ranks: int = 2, timeout_s: float = 240
) -> list[Any]:
    """Call `function(*args)` on ranks that are threads of this process, each in the process group
    of all.

    A Fabric or Trainer finds its rank in torchrun's variables, and joins no other group:
    `devices=2` and any strategy that communicates through torch.distributed work as they are. Ranks
    take turns, which go on only where one waits for another: the result is the same each time. Each
    has its own copy of `args`, and its own random numbers, variables, working directory, filters of
    warnings and default dtype, which begin as they are here. All else of a process is shared, such
    as what `function` closes over.

    Args:
        function: called on each rank.
        args: for it.
        ranks: number of them.
        timeout_s: for all, where one waits for something else than a rank.

    Returns:
        What the function returned, one item a rank.

    Raises:
        WorkerError: a rank has failed, the first one, with its error as the cause; or none can go
            on, with what each waits for; or they aren't done in time, with where one is.
    """
    turns = Turns(ranks)
    world = ThreadedWorld(turns)

    def work(rank: int) -> Any:
        os.environ |= {
            **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",  # where nobody has to connect
        }
        world.join(rank, ranks)
        return function(*copy.deepcopy(args))

    with several_ranks():
        return turns.run(work, timeout_s)
