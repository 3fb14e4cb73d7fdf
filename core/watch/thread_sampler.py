"""Samples of the watched thread of this process: where it is, and whether anything of the process
is at work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.watch import kernel
from core.watch.users_code import innermost

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import FrameType

_AT_WORK = 0.02
"""Share of a core above which threads or processes are at work: it has to be small, as cores may be
shared by many.
"""
_RUNS = 5
"""Samples in a row in which something runs, or waits for a core, that make it work: idle threads
wake up, too.
"""
_STORED_BYTES = 64 * 1024
"""Bytes a second, read from or written to storage, above which a process works."""


@dataclass(frozen=True)
class ThreadSample:
    """A sample of the watched thread.

    Attributes:
        state: see `core.contract.rank_location`.
        line: the user's own, from the innermost frame that is neither core's nor a library's.
        is_moving: other threads of the process have done something, as gloo's do while data
            arrives.
    """

    state: str
    line: str
    is_moving: bool

    @property
    def is_at_work(self) -> bool:
        """True if it, or what it waits for, has done something since the last sample; or if that
        can't be seen.
        """
        return self.state in ("computes", "works", "unseen") or (
            self.state == "waits" and self.is_moving
        )


class ThreadSampler:
    """Samples one thread of this process again and again, always from the same other thread."""

    def __init__(self, thread: int, native_thread: int, waits_in: Sequence[str] = ()) -> None:
        """Sample the thread with these identifiers, Python's and the kernel's. For `waits_in`, see
        `World.waits_in`.
        """
        self._thread, self._native = thread, native_thread
        self._waits_in = ("torch.distributed", *waits_in)
        self._can_see = kernel.can_see()
        self._clock = _clocks(thread)
        self._ignored, self._ignored_clocks = {native_thread}, list[int]()
        self._last = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._runs = self._children_run = 0

    def leave_out(self, *watchers: threading.Thread) -> None:
        """Exclude the work of these running threads."""
        self._ignored.update(each.native_id for each in watchers if each.native_id is not None)
        self._ignored_clocks = _clocks(*(each.ident for each in watchers if each.ident is not None))
        self._last = self._spent(kernel.work_of_children(os.getpid()).cpu_s)

    def sample(self, ranks: Collection[int] = ()) -> ThreadSample:
        """The work of the thread since the last sample.

        Args:
            ranks: processes of other ranks, which may be children of this one, and don't work for
                it.
        """
        children = kernel.work_of_children(os.getpid(), ranks)
        before, self._last = self._last, self._spent(children.cpu_s)
        passed_s, own_s, others_s, children_s, stored = (
            now - then for now, then in zip(self._last, before, strict=True)
        )
        passed_s = max(passed_s, 1e-3)
        self._runs = self._runs + 1 if kernel.is_running(os.getpid(), self._ignored) else 0
        self._children_run = self._children_run + 1 if children.is_running else 0
        is_moving = others_s / passed_s > _AT_WORK or self._runs >= _RUNS
        is_working = is_moving or children_s / passed_s > _AT_WORK or self._children_run >= _RUNS
        frame = sys._current_frames().get(self._thread)
        frames = [] if frame is None else _frames(frame)
        user = innermost(frames, self._waits_in)
        inner = frames[:user]
        if any(each.f_code.co_filename.endswith(("/pdb.py", "/bdb.py")) for each in inner):
            state = "debugged"
        elif own_s / passed_s > _AT_WORK or kernel.thread_state(self._native) == "R":
            state = "computes"
        elif _is_bounded(inner):
            state = "works"
        elif self._is_collective(inner):
            state = "waits"
        elif (
            is_working
            or stored / passed_s > _STORED_BYTES
            or kernel.thread_state(self._native) == "D"
        ):
            state = "works"
        else:
            state = "asleep" if self._can_see else "unseen"
        return ThreadSample(state, _line(frames[user]) if user < len(frames) else "", is_moving)

    def stack(self) -> str:
        """The thread's stack now, as Python prints it. That takes longer than a sample."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _is_collective(self, inner: list[FrameType]) -> bool:
        """True if the thread waits for other ranks: in known modules, or in backward, where that
        happens in C.
        """
        if not inner:
            return False
        is_backward = inner[0].f_code.co_name == "_engine_run_backward"
        return is_backward or any(
            str(each.f_globals.get("__name__")).startswith(self._waits_in) for each in inner
        )

    def _spent(self, children_s: float) -> tuple[float, float, float, float, float]:
        """Time; CPU time of this thread, of the process's others, and of its children; and bytes of
        storage.
        """
        own_s = _cpu_s(self._clock)
        others_s = time.process_time() - own_s - _cpu_s(self._ignored_clocks)
        return time.monotonic(), own_s, others_s, children_s, kernel.stored_bytes()


def _clocks(*threads: int) -> list[int]:
    """The clocks of running threads: of an ended one there is no asking."""
    return (
        [time.pthread_getcpuclockid(each) for each in threads]
        if hasattr(time, "pthread_getcpuclockid")
        else []
    )


def _cpu_s(clocks: list[int]) -> float:
    with suppress(OSError):  # the thread has ended
        return sum(map(time.clock_gettime, clocks))
    return 0.0


def callers_line() -> str:
    """The user's line that has called core, as a sample shows it; empty if there is none."""
    frames = _frames(sys._getframe())
    user = innermost(frames)
    return _line(frames[user]) if user < len(frames) else ""


def _frames(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_bounded(inner: list[FrameType]) -> bool:
    """True if the thread waits for other ranks in core, where it has a limit of its own and a
    better error.
    """
    return any(
        str(each.f_globals.get("__name__")).startswith("core.strategies.rendezvous.polling")
        for each in inner
    )
