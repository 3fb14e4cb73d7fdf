"""Monarch's actor in a rank's process. Imported where Monarch is."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from typing import TYPE_CHECKING, TypeVar

from monarch.actor import Actor, concurrent_endpoint, endpoint

from core_monarch.main_thread import MAIN_THREAD
from core_monarch.worker import Ending, News, Place, Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class RankActor(Actor):  # type: ignore[misc]  # Monarch isn't installed where types are checked
    """Takes calls to the process's main thread, and answers others meanwhile."""

    def __init__(self) -> None:
        self._rank = Rank()

    @endpoint  # type: ignore[untyped-decorator]  # likewise
    async def begin(self, paths: list[str]) -> Place:
        """See `Rank.begin`."""
        return await self._in_main_thread(functools.partial(self._rank.begin, paths))

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def run(self, call: bytes, world: Mapping[str, int], variables: Mapping[str, str]) -> Ending:
        """See `Rank.run`."""
        return await self._in_main_thread(functools.partial(self._rank.run, call, world, variables))

    @endpoint  # type: ignore[untyped-decorator]
    async def tell(self, news: News) -> None:
        """See `Rank.tell`."""
        self._rank.tell(news)

    @endpoint  # type: ignore[untyped-decorator]
    async def die(self) -> None:
        """End this process at once, so that its connections are closed."""
        os.kill(os.getpid(), signal.SIGKILL)

    async def _in_main_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(MAIN_THREAD.submit(function))
