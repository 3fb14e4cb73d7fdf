"""The watch of this process: begun with its process group, ended with it."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.watch.options import Watch
    from core.watch.watching import Watching

_watching: list[Watching] = []


def begin(strategy: Strategy, given: bool | Watch | None = None) -> None:
    """All ranks, once the strategy has joined torch's process group. Watch this rank, and the others with them.

    Nothing begins with one process, without torch's process group, or where there is a watch already.

    Args:
        strategy: tells ranks and the address of the store.
        given: True or None for the defaults, False for no watch, or its options.

    Raises:
        ConfigurationError: no such options.
    """
    from core.watch.options import chosen

    options = chosen(given)
    if options is None or strategy.world_size < 2 or (_watching and _watching[0].pid == os.getpid()):
        return
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return
    from core.watch.watching import Watching

    try:
        # The one that the group was made with, which has no public name.
        store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]  # torch's types lack it
    except (AttributeError, RuntimeError):  # a kind of store that has no second connection
        return
    environment = strategy.cluster_environment
    port = environment.main_port if environment is not None else 0
    _watching[:] = [Watching(options, store, dist.get_rank(), dist.get_world_size(), port)]
    atexit.register(end)


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
