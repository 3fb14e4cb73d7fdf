"""The rounds in which ranks meet at a store that may outlive them, as an elastic agent's does.

Nothing that a rank is told by torchrun is the same on all ranks of its round and on no other: each agent counts its own
restarts, and one that has come later counts from 0. So rank 0 names the round, and answers whoever comes by that name.
Ranks of earlier rounds, which are gone, have left their questions behind; they are answered too, and nobody reads it.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from core.strategies.meeting import came_late
from core.strategies.polling import pause

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C._distributed_c10d import Store  # torch.distributed's own, with types


def meet(store: Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """All ranks of a round, once in each process. A name of the round that no other one at this store has.

    Raises:
        WorkerError: a rank hasn't come in time; it is named.
    """
    if rank == 0:
        return _invite(store, world_size, timeout)
    return _ask(store, rank, timeout)


def _ask(store: Store, rank: int, timeout: timedelta) -> str:
    token, began_s = secrets.token_hex(8), time.monotonic()
    number = store.add("core/asked", 1)
    store.set(f"core/asks/{number}", token)
    answer = f"core/answered/{token}"
    while not store.check([answer]):
        waited_s = time.monotonic() - began_s
        if waited_s > timeout.total_seconds():
            raise came_late([0], rank, timeout)
        pause(waited_s)
    name = store.get(answer).decode()
    store.set(_came(name, rank), "")
    return name


def _invite(store: Store, world_size: int, timeout: timedelta) -> str:
    name, began_s, num_asked = secrets.token_hex(8), time.monotonic(), 0
    awaited, unanswered = set(range(1, world_size)), set[int]()
    while awaited:
        before, num_asked = num_asked, store.add("core/asked", 0)  # to add nothing is to read the counter
        unanswered |= set(range(before + 1, num_asked + 1))
        # A rank that has died may have counted and not asked.
        for number in [number for number in unanswered if store.check([f"core/asks/{number}"])]:
            store.set(f"core/answered/{store.get(f'core/asks/{number}').decode()}", name)
            unanswered.remove(number)
        awaited = {rank for rank in awaited if not store.check([_came(name, rank)])}
        waited_s = time.monotonic() - began_s
        if awaited and waited_s > timeout.total_seconds():
            raise came_late(sorted(awaited), 0, timeout)
        if awaited:
            pause(waited_s)
    return name


def _came(name: str, rank: int) -> str:
    return f"core/round/{name}/{rank}"
