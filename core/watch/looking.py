"""Looks at the watched thread of this process, and at what can be seen of another process of the same machine."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_BUSY = 0.2
"""Share of a core above which a thread computes."""
_MOVING = 0.02
"""Share of a core above which threads of gloo's are at work."""
_STORED_BYTES = 64 * 1024
"""Bytes a second, read from or written to storage, above which a process works."""
_STATE, _CPU_TICKS, _BEGAN = 0, (11, 12), 19
"""Places in the kernel's `stat` of a process, counted from the field after the program's name."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Sight:
    """One look at the watched thread.

    Attributes:
        state: see `core.contract.whereabouts`.
        line: the user's own, from the innermost frame that is neither core's nor a library's.
        is_moving: other threads of the process have done something, as gloo's do while data arrives.
    """

    state: str
    line: str
    is_moving: bool


class Eye:
    """Looks at one thread of this process, again and again."""

    def __init__(self, thread: int, native_thread: int, waits_in: Sequence[str] = ()) -> None:
        """Look at the thread with these two numbers, Python's and the kernel's; see `World.waits_in`."""
        self._thread, self._native = thread, native_thread
        self._waits_in = ("torch.distributed", *waits_in)
        self._clock = time.pthread_getcpuclockid(thread)
        self._last = self._spent()

    def look(self) -> Sight:
        """Look at what the thread has done since the last time."""
        before, self._last = self._last, self._spent()
        passed_s, own_s, all_s, stored = (now - then for now, then in zip(self._last, before, strict=True))
        passed_s = max(passed_s, 1e-3)
        frame = sys._current_frames().get(self._thread)
        frames = [] if frame is None else _frames(frame)
        user = next((number for number, each in enumerate(frames) if self._is_users(each)), len(frames))
        inner = [each.f_code.co_filename for each in frames[:user]]
        if any(name.endswith(("/pdb.py", "/bdb.py")) for name in inner):
            state = "debugged"
        elif own_s / passed_s > _BUSY or _thread_state(self._native) == "R":
            state = "computes"
        elif _is_bounded(frames[:user]):
            state = "works"
        elif self._is_collective(frames[:user]):
            state = "waits"
        elif all_s / passed_s > _BUSY or stored / passed_s > _STORED_BYTES or _thread_state(self._native) == "D":
            state = "works"
        else:
            state = "asleep"
        line = _line(frames[user]) if user < len(frames) else ""
        return Sight(state, line, (all_s - own_s) / passed_s > _MOVING)

    def stack(self) -> str:
        """The thread's stack now, as Python prints it. That takes longer than a look."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _is_users(self, frame: FrameType) -> bool:
        return is_users(frame) and not str(frame.f_globals.get("__name__")).startswith(self._waits_in)

    def _is_collective(self, inner: list[FrameType]) -> bool:
        """True if the thread waits for other ranks: in known modules, or in backward, where that happens in C."""
        if not inner:
            return False
        is_backward = inner[0].f_code.co_name == "_engine_run_backward"
        return is_backward or any(str(each.f_globals.get("__name__")).startswith(self._waits_in) for each in inner)

    def _spent(self) -> tuple[float, float, float, float]:
        """Time, this thread's CPU time, that of the process and its children, and bytes of storage."""
        with suppress(OSError):
            others_s = time.process_time() - time.thread_time() + _children_s()  # without the watch's own
            return time.monotonic(), time.clock_gettime(self._clock), others_s, _stored()
        return time.monotonic(), 0.0, 0.0, 0.0  # the thread has ended


def _frames(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


@cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = str(Path(__file__).parents[1]) + os.sep
    return ("<frozen ", own, *(paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")))


def is_users(frame: FrameType) -> bool:
    """True for code that is neither core's, nor a plugin's, nor that of an installed library."""
    return _is_users(str(frame.f_globals.get("__name__")), frame.f_code.co_filename)


def is_users_file(path: str) -> bool:
    """The same for a file of code. Looks through all modules, to know those of plugins."""
    files = {getattr(each, "__dict__", {}).get("__file__"): name for name, each in [*sys.modules.items()]}
    return _is_users(files.get(path, ""), path)


def _is_users(name: str, path: str) -> bool:
    is_own = name.partition(".")[0].startswith("core_") or name.partition(".")[0] in ("core", "torch")
    return not is_own and f"{os.sep}site-packages{os.sep}" not in path and not path.startswith(_libraries())


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_bounded(inner: list[FrameType]) -> bool:
    """True if the thread waits for other ranks in core, where it has a limit of its own and a better error."""
    return any(str(each.f_globals.get("__name__")).startswith("core.strategies.polling") for each in inner)


def _thread_state(native: int) -> str:
    """The kernel's letter: R runs, S sleeps, D waits for a disk, T is stopped, Z is gone; empty if unknown."""
    return _stat(f"/proc/self/task/{native}/stat")[_STATE]


def process_state(pid: int) -> str:
    """The kernel's letter for a process of this machine; `Z` if it is gone, empty where it can't be known."""
    if not os.path.isdir("/proc/self"):
        return ""
    return _stat(f"/proc/{pid}/stat")[_STATE] or "Z"


def began_at(pid: int) -> str:
    """The time at which a process began, in the kernel's ticks: another process of the same number has another time."""
    return _stat(f"/proc/{pid}/stat")[_BEGAN]


def _stat(path: str) -> list[str]:
    """Fields of a `stat` file after the program's name, in which anything may stand; all empty if it can't be read."""
    with suppress(OSError):
        fields = Path(path).read_text(errors="replace").rpartition(")")[2].split()
        if len(fields) > _BEGAN:
            return fields
    return [""] * (_BEGAN + 1)


def _children_s() -> float:
    """CPU seconds of this process's running children, such as the workers of a loader."""
    total = 0.0
    with suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            for child in Path(f"/proc/self/task/{task}/children").read_text().split():
                fields = _stat(f"/proc/{child}/stat")
                total += sum(int(fields[number] or 0) for number in _CPU_TICKS) / _TICKS
    return total


def _stored() -> float:
    with suppress(OSError, ValueError):
        rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return float(rows["read_bytes"]) + float(rows["write_bytes"])
    return 0.0


def num_collectives() -> int:
    """Collectives that this rank has begun in the group of all ranks."""
    import torch.distributed as dist

    with suppress(Exception):  # no backend has to count, and the group may be left meanwhile
        if (group := dist.group.WORLD) is not None:
            return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]  # torch's types lack it
    return 0


def waits_on_device() -> bool:
    """True if collectives run beside the thread that has begun them, which then waits wherever it needs a value."""
    import torch.distributed as dist

    with suppress(Exception):  # the group may be left meanwhile
        return "gloo" not in dist.get_backend()
    return False
