"""Named barriers through a store: in place of a collective, which would mix with others if only
some ranks reach it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's own, with types

from core.strategies.rendezvous.polling import pause

if TYPE_CHECKING:
    from datetime import timedelta

# Weak: whatever holds a group that was left keeps its threads alive.
_of_groups: WeakKeyDictionary[dist.ProcessGroup, NamedBarriers] = WeakKeyDictionary()


class NamedBarriers:
    """The named barriers of one process group, which all ranks reach in the same order."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        """Count from 0, in a store that no other group uses under the same prefix."""
        self._store = PrefixStore("core/arrivals", store)
        self._rank, self._world_size, self._number = rank, world_size, 0

    def absent_at(self, point: str, timeout: timedelta) -> list[int]:
        """Arrive at a point and wait for the others. Returns the ranks that don't arrive in
        time.
        """
        self._number += 1
        key = f"{self._number}/{point}"
        # The name before the count: a rank that is counted is never listed as absent.
        self._store.set(f"rank/{self._rank}", key)
        has_come = self._store.add(key, 1)
        began_s = time.monotonic()
        limit_s = timeout.total_seconds()
        while has_come < self._world_size:
            waited_s = time.monotonic() - began_s
            if waited_s > limit_s:
                # Empty if the last one has come since the count was read.
                return [rank for rank in range(self._world_size) if not self._is_at(key, rank)]
            pause(waited_s)
            # To add nothing is to read the counter.
            has_come = self._store.add(key, 0)
        return []

    def _is_at(self, point: str, rank: int) -> bool:
        place = f"rank/{rank}"
        return self._store.check([place]) and self._store.get(place).decode() == point


def barriers_of_group() -> NamedBarriers:
    """The named barriers of the process group that this process is in, however it was made."""
    group = dist.group.WORLD
    assert group is not None, "a group that was joined"
    if group not in _of_groups:
        # that the group was made with; it has no public name
        store = dist.distributed_c10d._get_default_store()
        _of_groups[group] = NamedBarriers(store, dist.get_rank(), dist.get_world_size())
    return _of_groups[group]
