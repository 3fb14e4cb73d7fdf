"""The watch of this process: begun with its process group, ended with it."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed's own, with types

    from core.contract import Strategy
    from core.watch.options import Watch
    from core.watch.watching import Watching

_watching: list[Watching] = []


def begin(strategy: Strategy, given: bool | Watch | None = None) -> None:
    """All ranks, once the strategy has set up the environment. Watch this rank, and the others with them.

    Nothing begins with one process, without a store that all ranks reach, or where there is a watch already.

    Args:
        strategy: tells ranks, the store, and where ranks wait.
        given: True or None for the defaults, False for no watch, or its options.

    Raises:
        ConfigurationError: no such options.
    """
    from core.watch.options import chosen

    options = chosen(given)
    if options is None or strategy.world_size < 2 or (_watching and _watching[0].pid == os.getpid()):
        return
    if (store := _own_connection(strategy)) is None:
        return
    from core.watch.users_code import leave_out
    from core.watch.watching import Watching

    environment = strategy.cluster_environment
    port = environment.main_port if environment is not None else 0
    is_hosted = environment is not None and environment.store_is_hosted
    leave_out([strategy, strategy.accelerator, strategy.precision_plugin, strategy.checkpoint_io, environment])
    _watching[:] = [Watching(options, store, strategy, port, is_store_hosted=is_hosted)]
    atexit.register(end)


def tell_of_the_late(given: bool | Watch | None) -> None:
    """Before ranks meet. Let one that doesn't come be told after the limit of these options."""
    from core.strategies import late
    from core.watch.options import chosen

    if (options := chosen(given)) is not None:
        late.TOLD_AFTER_S = options.limit.total_seconds()


def _own_connection(strategy: Strategy) -> Store | None:
    """A second connection to a store that all ranks reach; None if there is no such store."""
    import torch.distributed as dist

    store: Any = strategy.watch_store  # torch's types lack `clone`
    if store is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        # The one that the group was made with, which has no public name.
        store = dist.distributed_c10d._get_default_store()
    with suppress(AttributeError, RuntimeError):  # a kind of store that has no second connection
        own: Store | None = None if store is None else store.clone()
        return own
    return None


def let_abort() -> None:
    """All ranks; idempotent, before a group is left. Native code that gives up ends the process at once from here on.

    The group's end joins threads while it holds Python's lock. One of them that gave up, and told Python of it, would
    wait for that lock for ever.
    """
    atexit.unregister(let_abort)
    if _watching and _watching[0].pid == os.getpid():
        _watching[0].let_abort()


def end() -> None:
    """All ranks; idempotent. Watch no more; the others are told that this rank has left."""
    atexit.unregister(end)
    if _watching:
        watching = _watching.pop()
        if watching.pid == os.getpid():  # a forked copy has no thread of it
            watching.close()


def explain(error: BaseException) -> BaseException:
    """The cause of an error that ends the run: the verdict, if there is one, else the error itself."""
    with suppress(IndexError):
        return _watching[0].ending.explain(error)
    return error
