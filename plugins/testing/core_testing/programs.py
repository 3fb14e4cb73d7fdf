"""Programs that start in a fork of a process which has imported torch and core: within
milliseconds, not two seconds.

For tests that start programs where a fresh interpreter isn't the point. The command of `start` and
`run` is `[sys.executable, SCRIPT, ...]`, `[sys.executable, "-c", SOURCE, ...]` or
`[sys.executable, "-m", MODULE, ...]`, with `-W error` or `-P` before it if need be. The end of the
program is the end of a real interpreter: its exit code, its traceback, and what runs at exit. The
interpreters that a program starts, such as other ranks, are forks of the same server, with nothing
of what the program has done; `forks_others=False` lets them be new.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from core_testing import fork_server
from core_testing.spare import CAN_ADOPT, ask
from core_testing.waiting import slowness

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PRELOAD = "torch,torch._dynamo,importlib_metadata,core:*,core_training:*"
"""The modules that are imported already: torch, with what every optimizer imports when made, and
all of core and core-training, which a run would import piece by piece.
"""
CORE, TORCHRUN = ((sys.executable, "-m", name) for name in ("core", "torch.distributed.run"))
PYTEST = (sys.executable, "-P", "-m", "pytest", "-p", "no:randomly")
"""Runs tests in the order in which they were written, whatever is installed."""


class Program:
    """A program that was started, as `subprocess.Popen` knows one; what it writes goes to files
    until it has ended.

    Attributes:
        args: the command.
        pid: of its process.
        returncode: its exit code; None while it runs, or until that is asked for. Negative is a
            signal.
    """

    def __init__(
        self,
        args: Sequence[Any],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        merge_errors: bool = False,
        new_session: bool = True,
        forks_others: bool = True,
        preload: str = PRELOAD,
    ) -> None:
        """Start it.

        Args:
            args: the command; its first item is `sys.executable`.
            cwd: its folder; None for that of this process.
            env: all its variables; None for those of this process.
            merge_errors: put what it writes to stderr where stdout goes.
            new_session: give it a session of its own, which `kill` ends.
            forks_others: fork the interpreters that it starts in their turn, where the system can.
            preload: names of modules that are imported already, separated by commas; `:*` stands
                for all modules of a package, if it is installed.
        """
        self.args = [str(each) for each in args]
        self.returncode: int | None = None
        self._has_session = new_session
        self._output = _new_file(self)
        self._errors = self._output if merge_errors else _new_file(self)
        request = {
            "args": self.args[1:],
            "folder": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
            "has_spare": forks_others and CAN_ADOPT,
            "numbers": [0, 1, 2],
            "ignored": [],
            "blocked": [],
        }
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), self._output, self._errors]
            self._reports = ask(_server(preload, tuple(sys.path)).line, request, files)
        weakref.finalize(self, os.close, self._reports)
        self.pid = self._read()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as soon as it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The output to stdout and to stderr, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self.wait(timeout)
        return self.output(), self.errors()

    def output(self) -> str:
        """The output to stdout so far, its own and that of the processes that it has started."""
        return _content(self._output)

    def errors(self) -> str:
        """The output to stderr so far."""
        return _content(self._errors)

    def kill(self) -> None:
        """Kill it, and all in its session if that is its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if self._has_session else os.kill)(self.pid, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], timeout)[0]:
            self.returncode = self._read()
        return self.returncode

    def _read(self) -> int:
        number = os.read(self._reports, 8)
        assert number, "the server of programs has ended"
        return int.from_bytes(number, "little", signed=True)


def start(args: Sequence[Any], **options: Any) -> Program:
    """Start a program in a session of its own. See `Program`."""
    return Program(args, **options)


def run(
    args: Sequence[Any], *, timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        args: the command.
        timeout: in seconds of a fast and idle machine (`core_testing.waiting`), after which it is
            killed.
        options: of `Program`.

    Raises:
        subprocess.TimeoutExpired: it has not ended by then.
    """
    program = Program(args, **options)
    try:
        output, errors = program.communicate(timeout * slowness())
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
        raise
    return subprocess.CompletedProcess(program.args, program.wait(), output, errors)


def _new_file(owner: Program) -> int:
    with tempfile.TemporaryFile(buffering=0) as file:
        number = os.dup(file.fileno())
    weakref.finalize(owner, os.close, number)
    return number


def _content(file: int) -> str:
    # Not seek: the program's writes share this file's position.
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


class _ForkServer:
    """A running `fork_server`, until the end of this process.

    Attributes:
        line: on which it is asked.
    """

    def __init__(self, preload: str, path: tuple[str, ...]) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # Nothing is written to it: that this process holds its end is what keeps programs alive.
        life, self._life = os.pipe()
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, fork_server.__file__, str(theirs.fileno()), str(life), preload],
                # a new interpreter, also where this process's spare would fork one
                executable=sys.executable,
                pass_fds=[theirs.fileno(), life],
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        os.close(life)
        atexit.register(self.close)

    def close(self) -> None:
        """Idempotent. Let it end, also where ranks that were forked since and still run keep a copy
        of the line.
        """
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()
        self._process.wait()


_server = functools.cache(_ForkServer)
