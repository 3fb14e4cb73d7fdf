"""Processes of this machine as the kernel shows them in /proc, where there is one that can be
read.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PROC = "/proc"
_STATE, _CPU_TICKS, _CHILDREN_TICKS = 0, slice(11, 13), slice(13, 15)
"""Places in the kernel's `stat` of a process, counted from the field after the program's name."""
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessWork(NamedTuple):
    """The work of some processes.

    Attributes:
        cpu_s: CPU seconds so far, those of children that have ended among them.
        is_running: a thread runs, or waits for a core or a disk.
    """

    cpu_s: float
    is_running: bool


def machine() -> str:
    """A name for all processes that see each other: two containers, or two machines, may have one
    host name.
    """
    name = [socket.gethostname(), _text(f"{PROC}/sys/kernel/random/boot_id").strip()]
    with suppress(OSError):
        name.append(os.readlink(f"{PROC}/self/ns/pid"))
    return " ".join(name)


def can_see() -> bool:
    """True if the work of this process can be seen."""
    return bool(_stat(f"{PROC}/self/stat"))


def process_state(pid: int) -> str:
    """The kernel's letter for a process; `Z` if it is gone, empty where it can't be known."""
    fields = _stat(f"{PROC}/{pid}/stat")
    if fields:
        return fields[_STATE]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "Z"
    except OSError:
        pass
    return ""


def thread_state(thread: int) -> str:
    """The kernel's letter for a thread of this process: R runs, S sleeps, D waits for a disk; empty
    if unknown.
    """
    return (_stat(f"{PROC}/self/task/{thread}/stat") or [""])[_STATE]


def is_traced() -> bool:
    """True if another process traces this one, as gdb and strace do."""
    _, _, tracer = _text(f"{PROC}/self/status").partition("TracerPid:\t")
    return tracer[:1] not in ("", "0")


def is_gone(pid: int) -> bool:
    """True if a process has ended."""
    return process_state(pid) in ("Z", "X")


def work_of_children(pid: int, without: Collection[int] = ()) -> ProcessWork:
    """The work of a process's children, and of theirs, living and ended; of those in `without`
    there is none.
    """
    tree = [pid]
    for each in tree:  # it grows
        for task in _names(f"{PROC}/{each}/task"):
            children = map(int, _text(f"{PROC}/{each}/task/{task}/children").split())
            tree += [child for child in children if child not in without]
    ended_s = _seconds(_stat(f"{PROC}/{pid}/stat"), _CHILDREN_TICKS)
    living_s = sum(cpu_s(each) for each in tree[1:])
    return ProcessWork(ended_s + living_s, any(is_running(each) for each in tree[1:]))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, and of those of its children that have ended."""
    fields = _stat(f"{PROC}/{pid}/stat")
    return _seconds(fields, _CPU_TICKS) + _seconds(fields, _CHILDREN_TICKS)


def is_running(pid: int, without: Collection[int] = ()) -> bool:
    """True if a thread of a process, other than those, runs, or waits for a core or a disk."""
    tasks = (name for name in _names(f"{PROC}/{pid}/task") if int(name) not in without)
    return any(
        (_stat(f"{PROC}/{pid}/task/{name}/stat") or [""])[_STATE] in ("R", "D") for name in tasks
    )


def stored_bytes() -> float:
    """Bytes that this process has read from and written to storage."""
    with suppress(KeyError, ValueError):
        rows = dict(line.split(": ") for line in _text(f"{PROC}/self/io").splitlines())
        return float(rows["read_bytes"]) + float(rows["write_bytes"])
    return 0.0


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process. Others don't notice: it would end their sleep."""
    with suppress(AttributeError, OSError):  # no such system call
        ctypes.CDLL(None).tgkill(pid, thread, number)


def _seconds(fields: list[str], places: slice) -> float:
    return sum(map(int, fields[places])) / _TICKS


def _stat(path: str) -> list[str]:
    """Fields of a `stat` file after the program's name, in which anything may stand; none if it
    can't be read.
    """
    return _text(path).rpartition(")")[2].split()


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def _names(path: str) -> Iterable[str]:
    with suppress(OSError):
        return os.listdir(path)
    return ()
