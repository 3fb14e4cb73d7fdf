"""Joining and leaving torch.distributed's process group, again and again within one script."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's own, with types
from torch.distributed.constants import default_pg_timeout

# its docstring calls it experimental
from torch.distributed.distributed_c10d import _abort_process_group

from core.contract import ConfigurationError
from core.display.warnings_once import share_warnings
from core.strategies.fingerprint import exchange
from core.strategies.rendezvous import rounds
from core.strategies.rendezvous.store import RendezvousStore, announce_exit
from core.strategies.rendezvous.timeout import answers, meets_within

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import torch

    from core.contract import ClusterEnvironment
    from core.contract.spec import Fingerprint

_stores: dict[tuple[str, int, int], Store] = {}

# A forked copy, such as a loader's worker, must not collect what is left of stores and groups:
# their threads aren't in it, and to free them would wait for those that have been given the same
# places since (torch 2.13).
os.register_at_fork(after_in_child=gc.freeze)

# A thread of gloo's lets go of a collective's tensors a moment after it is done, and takes Python's
# lock for it. If the interpreter ends in that moment, the process aborts (`std::terminate`, seen
# with torch 2.13 in one of five runs). If the group is freed in that moment, as by the last
# reference to a DDP module, that waits for the thread with the lock held, and the process hangs
# (one of thirty).
_GRACE_S = 0.05


def join(
    environment: ClusterEnvironment,
    *,
    backend: str,
    device: torch.device,
    select_device: Callable[[], None],
    timeout: timedelta | None,
    fingerprint: Fingerprint,
) -> bool:
    """All ranks. Join the group of all processes, unless this process is in one already.

    Args:
        environment: that knows the ranks.
        backend: of torch.
        device: of this rank.
        select_device: makes it the current one. Called before any rank connects to another, and
            where the others can tell that this one has left: a device that can't be used is this
            rank's error, and not one of NCCL's on all.
        timeout: None is torch's own for the backend.
        fingerprint: of this rank.

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
                f"This process is in a group of {dist.get_world_size()} already, and {world_size} "
                "were asked for. The workers of a script stay until it ends: ask for the same "
                "number, or use another script."
            )
        return False
    patience = timeout or default_pg_timeout
    shared = _shared_store(environment, rank, world_size, patience)
    rendezvous = RendezvousStore(shared, rank, world_size, meets_within(patience))
    select_device()
    if world_size > 1:
        exchange(rendezvous, rank, world_size, fingerprint)
    # Only NCCL makes use of it: it connects at once, and subgroups split off that connection.
    device_id = None
    if device.type == "cuda":
        device_id = device
    hook = sys.excepthook
    dist.init_process_group(
        backend,
        store=rendezvous.store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device_id,
    )
    if backend == "gloo":
        # It comes back while other ranks still connect. One that left soon would close connections
        # under their hands.
        dist.barrier()
    atexit.unregister(_await_others)  # once, however many groups a script makes
    atexit.register(_await_others)
    if world_size > 1:
        share_warnings(rank, shared)
    # torch puts "[rank0]:" before every line of a traceback, once for every group of a script
    sys.excepthook = hook
    return True


def leave() -> None:
    """All ranks; idempotent. Leave the group; the store stays for the next one of this script.

    With an exception under way, nothing that was begun is waited for: the other ranks may never
    come to it.
    """
    if dist.is_initialized():
        _await_others()
        # An exception is under way, or has ended the program.
        is_failing = sys.exc_info()[0] is not None
        if not threading.main_thread().is_alive():
            is_failing = is_failing or getattr(sys, "last_value", None) is not None
        # gloo's groups wait for nothing as they go. NCCL's first finish what is in their queues.
        if is_failing and dist.get_backend() != "gloo":
            _abort_process_group()
        else:
            dist.destroy_process_group()
        gc.collect()  # what holds a group, such as DDP's reducer with its buffers, is in cycles
        atexit.unregister(_await_others)


def _await_others() -> None:
    time.sleep(_GRACE_S)


def _shared_store(
    environment: ClusterEnvironment, rank: int, world_size: int, timeout: timedelta
) -> Store:
    # One store a process and meeting point: a new server on the same port would race with clients
    # of the old one.
    place = environment.main_address, environment.main_port
    key = (*place, world_size)
    if key not in _stores:
        from core.strategies.rendezvous.connections import connect, serve  # once a process

        hosts = rank == 0 and not environment.store_is_hosted
        # The server doesn't wait for the ranks: the rendezvous does, and names those that don't
        # come.
        store = serve(*place, timeout) if hosts else connect(*place, rank, timeout)
        name = "0"
        if environment.creates_processes:
            # What others have started they may start again, one node more often than another.
            name = rounds.meet(store, rank, world_size, meets_within(timeout))
        _stores[key] = PrefixStore(f"core/{name}", store)
        announce_exit(_stores[key], rank, lambda: answers(*place))
    return _stores[key]
