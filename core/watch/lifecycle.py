"""The watchdog of this process, which lives as long as its process group."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.watch.options import WatchdogOptions
    from core.watch.watchdog import Watchdog

_watchdogs: list[Watchdog] = []


def begin(strategy: Strategy, given: bool | WatchdogOptions | None = None) -> None:
    """All ranks, once the strategy has set up the environment. Start this process's watchdog.

    Nothing begins with one process, without a store that all ranks reach, or where there is a watch
    already.

    Args:
        strategy: has the ranks, the store, and the modules in which ranks wait.
        given: True or None for the defaults, False for no watch, or its options.

    Raises:
        ConfigurationError: no such options.
    """
    from core.watch.options import chosen

    options = chosen(given)
    if (
        options is None
        or strategy.world_size < 2
        or (_watchdogs and _watchdogs[0].pid == os.getpid())
    ):
        return
    import torch.distributed as dist

    store: Any = strategy.watch_store  # torch's types lack `clone`
    if store is None and dist.is_available() and dist.is_initialized():
        # The one that the group was made with, which has no public name.
        store = dist.distributed_c10d._get_default_store()
    try:
        own = store.clone()
    except (AttributeError, RuntimeError):  # a kind of store that has no second connection
        return
    from core.watch.watchdog import Watchdog

    environment = strategy.cluster_environment
    port, is_hosted = 0, False
    if environment is not None:
        port, is_hosted = environment.main_port, environment.store_is_hosted
    _watchdogs[:] = [Watchdog(options, own, strategy, port, is_store_hosted=is_hosted)]
    atexit.register(end)


def warn_of_late_ranks(given: bool | WatchdogOptions | None) -> None:
    """Before the rendezvous. Set when the ranks warn of one that is late: after the limit of these
    options.
    """
    from core.strategies.rendezvous import timeout
    from core.watch.options import chosen

    options = chosen(given)
    if options is not None:
        timeout.WARN_AFTER_S = options.limit.total_seconds()


def end() -> None:
    """All ranks; idempotent. Stop the watchdog, and publish to the other ranks that this one has
    left.
    """
    atexit.unregister(end)
    if _watchdogs:
        watchdog = _watchdogs.pop()
        if watchdog.pid == os.getpid():  # a forked copy has no thread of it
            watchdog.close()


def explain(error: BaseException) -> BaseException:
    """The cause of an error that ends the run: the verdict, if there is one, else the error
    itself.
    """
    with suppress(IndexError):
        return _watchdogs[0].termination.explain(error)
    return error
