"""One run of the program: `core run` with our prelude, until all of its processes have ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.text import printable
from core_plan.compared.task import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_plan.compared.task import Task

_GRACE_S = 10.0
"""Seconds for ranks to end by themselves, once their records are there or SIGTERM has come."""
_PR_SET_PDEATHSIG = 1
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Failure)(:|$)")
_MOST_LINES = 40


class RunFailed(Exception):
    """The program has ended without a record.

    Attributes:
        log: the last lines that its processes have written.
    """

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


def run(
    task: Task, options: Sequence[str], program: Sequence[str], timeout_s: float | None
) -> list[dict[str, Any]]:
    """Run the program to its end, and return what its ranks have recorded, in their order.

    Args:
        task: what to do, in a folder that is there.
        options: of `core run`.
        program: the script and its arguments.
        timeout_s: after which the run is ended; None for no limit.

    Raises:
        RunFailed: there is no record, or not of all steps and with an exit code.
        KeyboardInterrupt: its processes are gone.
    """
    task.launched_at = time.time()
    task.write()
    log = Path(task.folder, "log.txt")
    command = [sys.executable, "-m", "core", "run", *options, "--with", "core-compare", *program]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, VARIABLE: str(task.path)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not over after {timeout_s:g} s", _tail(log)) from None
        finally:
            end(process)
    return _read(task, code, log)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started; idempotent. The ranks of torchrun have sessions of
    their own.
    """
    if process.poll() is not None:
        return
    ranks = _descendants(process.pid)
    process.terminate()
    if _waits(process, _GRACE_S / 2):
        ranks = [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]
    for pid in ranks:
        _kill(pid)
    if not _waits(process, _GRACE_S):
        process.kill()
        process.wait()


def _waits(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


def _end_with_parent() -> None:
    """In the new process: SIGTERM when this one is killed, so that torchrun ends its ranks."""
    with contextlib.suppress(AttributeError, OSError):  # systems other than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _read(task: Task, code: int, log: Path) -> list[dict[str, Any]]:
    files = sorted(Path(task.folder).glob("rank-*.json"))
    ranks = {
        rank["rank"]: rank
        for file in files
        for rank in json.loads(file.read_text(encoding="utf-8"))
    }
    records = [ranks[number] for number in sorted(ranks)]
    if not records and code == 0:
        raise RunFailed(
            "the program has ended without an optimizer step of a Trainer's fit or a Fabric",
            _tail(log),
        )
    if not records or (code != 0 and any(rank["num_steps"] < task.steps for rank in records)):
        raise RunFailed(_reason(log, code), _tail(log))
    if code != 0:
        records[0]["problem"] = _reason(log, code)
    return records


def _reason(log: Path, code: int) -> str:
    """The last line with an error, or else the last one."""
    lines = [line.strip() for line in _lines(log) if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    others = [line for line in lines if not line.startswith("core run:")]
    return printable((errors or others or lines or [f"exit code {code}"])[-1])


def _tail(log: Path) -> str:
    return printable("\n".join(_lines(log)[-_MOST_LINES:]), keep="\n\t")


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()
