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
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(thread)
        self._last = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._runs = self._children_run = 0

    def sample(self, ranks: Collection[int] = ()) -> ThreadSample:
        """The work of the thread since the last sample, without that of the thread that asks.

        Args:
            ranks: processes of other ranks, which may be children of this one, and don't work for
                it.
        """
        pid, ignored = os.getpid(), {self._native, threading.get_native_id()}
        children = kernel.work_of_children(pid, ranks)
        before, self._last = self._last, self._spent(children.cpu_s)
        passed_s, own_s, others_s, children_s, stored = (
            now - then for now, then in zip(self._last, before, strict=True)
        )
        least_s = _AT_WORK * max(passed_s, 1e-3)
        self._runs = (self._runs + 1) * kernel.is_running(pid, ignored)
        self._children_run = (self._children_run + 1) * children.is_running
        is_moving = others_s > least_s or self._runs >= _RUNS
        stores = stored > _STORED_BYTES * passed_s
        is_working = is_moving or stores or children_s > least_s or self._children_run >= _RUNS
        frames = _frames(sys._current_frames().get(self._thread))
        user = innermost(frames, self._waits_in)
        state = self._state(frames[:user], computes=own_s > least_s, is_working=is_working)
        return ThreadSample(state, _line(frames[user : user + 1]), is_moving)

    def _state(self, inner: list[FrameType], *, computes: bool, is_working: bool) -> str:
        """Its state, by the frames that the user's line has called."""
        by_kernel = kernel.thread_state(self._native)
        if any(each.f_code.co_filename.endswith(("/pdb.py", "/bdb.py")) for each in inner):
            return "debugged"
        if computes or by_kernel == "R":
            return "computes"
        names = [str(each.f_globals.get("__name__")) for each in inner]
        # In core it waits for other ranks with a limit of its own, and a better error.
        if any(name.startswith("core.strategies.rendezvous.polling") for name in names):
            return "works"
        # It waits for other ranks: in known modules, or in backward, where that happens in C.
        is_backward = bool(inner) and inner[0].f_code.co_name == "_engine_run_backward"
        if is_backward or any(name.startswith(self._waits_in) for name in names):
            return "waits"
        if is_working or by_kernel == "D":
            return "works"
        if self._can_see:
            return "asleep"
        return "unseen"

    def stack(self) -> str:
        """The thread's stack now, as Python prints it. That takes longer than a sample."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return ""
        return "".join(traceback.format_stack(frame))

    def _spent(self, children_s: float) -> tuple[float, float, float, float, float]:
        """Time; CPU time of this thread, of the process's others, and of its children; and bytes of
        storage.
        """
        own_s = 0.0
        if self._clock is not None:
            with suppress(OSError):  # the thread has ended
                own_s = time.clock_gettime(self._clock)
        others_s = time.process_time() - own_s - time.thread_time()
        return time.monotonic(), own_s, others_s, children_s, kernel.stored_bytes()


def callers_line() -> str:
    """The user's line that has called core, as a sample shows it; empty if there is none."""
    frames = _frames(sys._getframe())
    user = innermost(frames)
    return _line(frames[user : user + 1])


def _frames(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _line(frames: list[FrameType]) -> str:
    """The line of the first frame; empty if there is none."""
    for frame in frames:
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
