"""The time limit of a rendezvous: a warning about ranks that are late, and an error in the end."""

from __future__ import annotations

import itertools
import logging
import socket
import struct
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed.constants import default_pg_timeout

from core.contract import WorkerError
from core.strategies.rendezvous.polling import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

WARN_AFTER_S = 30.0
"""Seconds after which a rank that hasn't come is worth a warning; the watch's limit, once there is
one.
"""
_MEETS_WITHIN = timedelta(minutes=10)


def meets_within(timeout: timedelta) -> timedelta:
    """The time for ranks to meet: a strategy's `timeout`, or ten minutes where that is torch's
    default.
    """
    return timeout if timeout != default_pg_timeout else _MEETS_WITHIN


class Wait:
    """The wait of one rank for others, from its creation on: with one warning, and a limit.

    Args:
        rank: that waits.
        timeout: after which it is an error.
        place: where it looks for them.
    """

    def __init__(self, rank: int, timeout: timedelta, place: str = "") -> None:
        self._rank, self._timeout, self._place = rank, timeout, place
        self._began_s = time.monotonic()
        self._has_warned = False

    @property
    def is_over(self) -> bool:
        """True if the time is over."""
        return time.monotonic() - self._began_s > self._timeout.total_seconds()

    def pause(self, absent: Callable[[], Collection[int]]) -> None:
        """Pause before another look.

        Args:
            absent: returns the ranks that haven't come.
        """
        waited_s = time.monotonic() - self._began_s
        if waited_s > WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            self._warn(sorted(absent()))
        pause(waited_s)

    def _warn(self, absent: list[int]) -> None:
        speaker = next(rank for rank in itertools.count() if rank not in absent)
        if absent and self._rank == speaker:
            logging.getLogger("core").warning(
                f"{listed(absent)} did not reach the start of the process group{self._place} "
                f"within {WARN_AFTER_S:g} s, and rank {self._rank} waits there (phase set-up). The "
                f"wait ends with an error after {self._timeout}; the strategy's timeout= changes "
                "that. Look for a rank that has ended, hangs, or is still at work."
            )


def late_error(absent: list[int], rank: int, timeout: timedelta, place: str = "") -> WorkerError:
    """The error of a rank whose wait for others has exceeded the limit."""
    return WorkerError(
        f"{listed(absent)} did not reach the start of the process group{place} within {timeout}, "
        f"and rank {rank} waited. All ranks must make the same calls: look for a rank that has "
        "ended, hangs, or takes another way.",
        rank=min(absent),
    )


def await_server(address: str, port: int, rank: int, timeout: timedelta) -> None:
    """Wait for the server of the store, which rank 0 has; a connection by torch itself would wait
    without a message.

    Raises:
        WorkerError: it isn't there in time.
    """
    place = f" at {address}:{port} (MASTER_ADDR and MASTER_PORT: are they rank 0's?)"
    wait = Wait(rank, timeout, place)
    while not answers(address, port):
        if wait.is_over:
            raise late_error([0], rank, timeout, place)
        wait.pause(lambda: [0])


def listed(ranks: list[int]) -> str:
    """`"Rank 1"`, `"Ranks 1, 2"`."""
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def answers(address: str, port: int) -> bool:
    """True if a server listens there."""
    try:
        with socket.create_connection((address, port), timeout=5) as line:
            # A free port may be the one that the kernel gives to this end: the line is to itself
            # then.
            if line.getsockname() != line.getpeername():
                return True
            # and the port is free again
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    return False
