"""Joining and leaving torch.distributed's process group, again and again within one script."""

from __future__ import annotations

import atexit
import gc
import itertools
import sys
import time
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed's own, with types

from core.contract import ConfigurationError
from core.shown_warnings import share_warnings
from core.strategies import rounds
from core.strategies.fingerprint import exchange
from core.strategies.late import await_server
from core.strategies.meeting import Meeting, say_at_exit

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

    from core.contract import ClusterEnvironment
    from core.contract.spec import Fingerprint

_stores: dict[tuple[str, int, int], Store] = {}
_joins = itertools.count()

# A thread of gloo's lets go of a collective's tensors a moment after it is done, and takes Python's lock for it. If the
# interpreter ends in that moment, the process aborts (`std::terminate`, seen with torch 2.13 in one of five runs). If
# the group is freed in that moment, as by the last reference to a DDP module, that waits for the thread with the lock
# held, and the process hangs (one of thirty).
_SETTLE_S = 0.05


def join(
    environment: ClusterEnvironment,
    *,
    backend: str,
    device: torch.device,
    timeout: timedelta,
    fingerprint: Fingerprint,
) -> bool:
    """All ranks. Join the group of all processes, unless this process is in one already.

    Returns:
        Whether the group was made here, and so is to be left by `leave`.

    Raises:
        ConfigurationError: this process is in a group of another size.
        FingerprintError: the ranks have resolved to different plugins.
        WorkerError: a rank has left instead of coming, or hasn't come in time.
    """
    rank, world_size = environment.global_rank(), environment.world_size()
    if dist.is_initialized():
        if dist.get_world_size() != world_size:
            raise ConfigurationError(
                f"This process is in a group of {dist.get_world_size()} already, and {world_size} were asked for. "
                "The workers of a script stay until it ends: ask for the same number, or use another script."
            )
        return False
    # Every join has a prefix of its own: a group that was left, or died before a restart, leaves its keys behind.
    shared = _shared_store(environment, rank, world_size, timeout)
    meeting = Meeting(shared, str(next(_joins)), rank, world_size, timeout)
    if world_size > 1:
        exchange(meeting, rank, world_size, fingerprint)
    # Only NCCL makes use of it: it connects at once, and subgroups split off that connection.
    device_id = device if device.type == "cuda" else None
    hook = sys.excepthook
    dist.init_process_group(
        backend, store=meeting.store, rank=rank, world_size=world_size, timeout=timeout, device_id=device_id
    )
    if backend == "gloo":
        # It comes back while other ranks still connect. One that left soon would close connections under their hands.
        dist.barrier()
    atexit.unregister(_settle)  # once, however many groups a script makes
    atexit.register(_settle)
    if world_size > 1:
        share_warnings(rank, lambda text: shared.add(text, 1) == 1)
    sys.excepthook = hook  # torch puts "[rank0]:" before every line of a traceback, once for every group of a script
    return True


def leave() -> None:
    """All ranks; idempotent. Leave the group; the store stays for the next one of this script."""
    if dist.is_initialized():
        _settle()
        dist.destroy_process_group()
        # What holds gloo's group, such as DDP's reducer, is in cycles. In a loader's worker that is forked later, to
        # collect it means to wait for threads that aren't there: it hangs (torch 2.13).
        gc.collect()
        atexit.unregister(_settle)


def _settle() -> None:
    time.sleep(_SETTLE_S)


def _shared_store(environment: ClusterEnvironment, rank: int, world_size: int, timeout: timedelta) -> Store:
    # One store a process and meeting point: a new server on the same port would race with clients of the old one.
    key = (environment.main_address, environment.main_port, world_size)
    if key not in _stores:
        hosts = rank == 0 and not environment.store_is_hosted
        if not hosts:
            await_server(environment.main_address, environment.main_port, rank, timeout)
        # The server doesn't wait for the ranks: the meeting does, and names those that don't come.
        store = TCPStore(
            environment.main_address, environment.main_port, is_master=hosts, timeout=timeout, wait_for_workers=False
        )
        # What others have started they may start again, one node more often than another.
        starts_again = environment.creates_processes
        name = rounds.meet(store, rank, world_size, timeout) if starts_again else "0"
        _stores[key] = PrefixStore(f"core/{name}", store)
        say_at_exit(_stores[key], rank)
    return _stores[key]
