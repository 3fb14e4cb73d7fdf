"""The resources of a process besides memory, so that two moments can be compared."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Footprint:
    """One moment. Attributes are the kinds of things that are left behind.

    Attributes:
        process_group: True if torch.distributed's default group exists.
        child_processes: their ids.
        threads: names of Python's threads.
        ports: TCP ports on which this process listens; empty where there is no /proc.
        environment_variables: all of them.
        temporary_files: below `folder`.
    """

    process_group: bool
    child_processes: frozenset[int]
    threads: frozenset[str]
    ports: frozenset[int]
    environment_variables: frozenset[tuple[str, str]]
    temporary_files: frozenset[str]

    @classmethod
    def take(cls, folder: Path | None = None, *, with_ports: bool = True) -> Footprint:
        """Now, in this process.

        Args:
            folder: where temporary files are made; None looks for none.
            with_ports: look for ports too, for which the kernel lists the connections of the whole
                machine.
        """
        return cls(
            process_group=dist.is_available() and dist.is_initialized(),
            child_processes=_children(),
            threads=frozenset(thread.name for thread in threading.enumerate()),
            ports=_listening_ports() if with_ports else frozenset(),
            environment_variables=frozenset(os.environ.items()),
            temporary_files=frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))
            if folder
            else frozenset(),
        )

    def beyond(self, earlier: Footprint, kind: str) -> list[str]:
        """The resources of one kind (an attribute's name) that are here now and weren't at an
        earlier moment.
        """
        now, before = getattr(self, kind), getattr(earlier, kind)
        if isinstance(now, bool):
            return ["the default process group"] if now and not before else []
        return sorted(map(str, now - before))


def _children() -> frozenset[int]:
    found: set[int] = set()
    # Linux lists children by the thread that has started them.
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return frozenset(found)


def _listening_ports() -> frozenset[int]:
    sockets = set()
    for path in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    ports = set()
    # Fields of a line: 1 is address and port in hex, 3 the state, 9 the socket's number, as in
    # /proc/self/fd.
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(ports)
