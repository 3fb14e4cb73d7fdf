"""Monarch's actor in a rank's process. Imported where Monarch is."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from typing import TYPE_CHECKING, TypeVar

from monarch.actor import Actor, concurrent_endpoint, endpoint

from core_monarch.main_thread import MAIN_THREAD
from core_monarch.worker import MonarchEnding, MonarchNews, MonarchPlace, RankProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class MonarchActor(Actor):  # type: ignore[misc]  # Monarch isn't installed where types are checked
    """An actor that takes calls to the process's main thread, and answers others meanwhile."""

    def __init__(self) -> None:
        self._rank = RankProcess()

    @endpoint  # type: ignore[untyped-decorator]  # likewise
    async def begin(self, paths: list[str]) -> MonarchPlace:
        """See `RankProcess.begin`."""
        return await self._in_main_thread(functools.partial(self._rank.begin, paths))

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def run(
        self, call: bytes, world: Mapping[str, int], variables: Mapping[str, str]
    ) -> MonarchEnding:
        """See `RankProcess.run`."""
        return await self._in_main_thread(functools.partial(self._rank.run, call, world, variables))

    @endpoint  # type: ignore[untyped-decorator]
    async def post(self, news: MonarchNews) -> None:
        """See `RankProcess.post`."""
        self._rank.post(news)

    @endpoint  # type: ignore[untyped-decorator]
    async def die(self) -> None:
        """End this process at once, so that its connections are closed."""
        os.kill(os.getpid(), signal.SIGKILL)

    async def _in_main_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(MAIN_THREAD.submit(function))
