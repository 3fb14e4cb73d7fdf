"""The rounds of a rendezvous at a store that may outlive the ranks, as an elastic agent's does.

Nothing that torchrun gives a rank is the same on all ranks of its round and on no other: each agent
counts its own restarts, and one that has come later counts from 0. So each rank takes a number, and
rank 0 names the round and says up to which number its answer is good. Ranks of earlier rounds,
which are gone, have had smaller numbers; what their rank 0 has said is good for those only. Rank 0
asks and says as much for any number of ranks.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from core.strategies.rendezvous.timeout import Wait, late_error

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C._distributed_c10d import Store  # torch.distributed's own, with types

_ANSWER = "core/answer"
"""Key of the number of the last request that is answered, and the name of the round."""


def meet(store: Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """All ranks of a round, once in each process. Agree on a name for the round that is unique at
    this store.

    Raises:
        WorkerError: a rank hasn't come in time; it is named.
    """
    if rank == 0:
        return _invite(store, world_size, timeout)
    number = store.add("core/asked", 1)
    wait = Wait(rank, timeout)
    last = 0
    name = ""
    while last < number:
        if wait.is_over:
            raise late_error([0], rank, timeout)
        wait.pause(lambda: [0])
        if store.check([_ANSWER]):
            answered, _, name = store.get(_ANSWER).decode().partition(" ")
            last = int(answered)
    # before it is counted: rank 0 looks for it only if some are missing
    store.set(_came(name, rank), "")
    store.add(f"core/round/{name}", 1)
    return name


def _invite(store: Store, world_size: int, timeout: timedelta) -> str:
    name, wait, num_asked = secrets.token_hex(8), Wait(0, timeout), 0

    def absent() -> list[int]:
        return [rank for rank in range(1, world_size) if not store.check([_came(name, rank)])]

    while True:
        # to add nothing is to read the counter
        before, num_asked = num_asked, store.add("core/asked", 0)
        if num_asked > before:
            store.set(_ANSWER, f"{num_asked} {name}")
        if store.add(f"core/round/{name}", 0) == world_size - 1:
            return name
        if wait.is_over:
            awaited = absent()
            if not awaited:
                return name
            raise late_error(awaited, 0, timeout)
        wait.pause(absent)


def _came(name: str, rank: int) -> str:
    return f"core/round/{name}/{rank}"
