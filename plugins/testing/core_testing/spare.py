"""The spare of a program that `fork_server` runs: forked from it before it began, for the
interpreters that it starts.

A program that starts `python ...`, such as a rank that starts the next one, would wait for imports
once more. Its spare serves it as the server does, with one difference: what is forked becomes a
child of the program, as a process that it has started itself would be. For that the spare's fork
forks once more and ends, and the kernel hands the orphan to the nearest ancestor that takes
orphans, which the program is as long as it asks.

Nothing but the standard library is imported here: see `fork_server`.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CAN_ADOPT = sys.platform == "linux"
"""True if a process can become the parent of another's orphans."""
NAME = "core-spare"
"""Of a spare's process, among those of a program's session."""
_SET_NAME, _SET_CHILD_SUBREAPER = 15, 36
_STANDARD_FILES = (0, 1, 2)
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_OPTIONS = ("-B", "-P", "-W", "-u")
_ACTIONS = ("default", "error", "always", "ignore", "module", "once")
_OF_EVERY_INTERPRETER = {signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that Python itself ignores."""


def ask(line: socket.socket, request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Ask a server for a program's process. Returns the pipe that gets its id.

    Args:
        line: to the server, or to a spare.
        request: what `fork_server.become` reads.
        files: those of the program, in the order of the request's numbers.
    """
    reports, report = os.pipe()
    try:
        with (
            os.fdopen(os.memfd_create("program"), "w")
            if CAN_ADOPT
            else tempfile.TemporaryFile("w") as description
        ):
            json.dump(request, description)
            description.flush()
            description.seek(0)
            socket.send_fds(line, [b"\n"], [description.fileno(), report, *files])
    finally:
        os.close(report)
    return reports


def fork_for_adoption() -> int:
    """Fork, and let the nearest ancestor that takes orphans be the new process's parent. Returns 0
    in it.
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return between
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    return 0


def name_process(name: str) -> None:
    """Give this process, which looks like others by its command, a name."""
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def split(command: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The interpreter's own options, and from `-c`, `-m` or the script on."""
    index = 0
    while (
        index < len(command)
        and command[index].startswith("-")
        and command[index] not in ("-c", "-m")
    ):
        index += 2 if command[index] == "-W" else 1
    return command[:index], command[index:]


class Spare:
    """The way from a program to its spare.

    Args:
        line: to the spare's process.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line, self._lock = line, threading.Lock()
        self._program = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl

    def serve(self) -> None:
        """Fork the interpreters that `subprocess` and `multiprocessing` are asked to start, where
        that does as well.
        """
        start: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        names = start.__code__.co_varnames[1:]
        spawn = multiprocessing.util.spawnv_passfds

        def execute_child(popen: Any, *args: Any) -> None:
            pid = self._fork_for(asked := dict(zip(names, args, strict=False)))
            if pid is None:
                start(popen, *args)
                return
            popen.pid, popen._child_created = pid, True
            popen._close_pipe_fds(*(asked[name] for name in _PIPES))

        def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
            files = {number: number for number in (*_STANDARD_FILES, *passfds)}
            pid: int | None = self.fork(args, files)
            return spawn(path, args, passfds) if pid is None else pid

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        multiprocessing.util.spawnv_passfds = spawnv_passfds

    def _fork_for(self, asked: Mapping[str, Any]) -> int | None:
        """The id of the process that `Popen` is asked for; None if it takes more than a fork."""
        is_plain = (
            asked["preexec_fn"] is None and not asked["shell"] and asked["executable"] is None
        )
        if not is_plain or not isinstance(asked["args"], list | tuple):
            return None
        ends = asked["p2cread"], asked["c2pwrite"], asked["errwrite"]
        files = {number: number if end == -1 else end for number, end in enumerate(ends)}
        files |= {number: number for number in asked["pass_fds"]}
        return self.fork(
            asked["args"], files, asked["cwd"], asked["env"], asked["start_new_session"]
        )

    def fork(
        self,
        args: Sequence[Any],
        files: Mapping[int, int],
        folder: Any = None,
        env: Mapping[Any, Any] | None = None,
        has_session: bool = False,
    ) -> int | None:
        """The id of a new child of this process that runs `python ...`; None if that takes a new
        interpreter.

        Args:
            args: the command.
            files: those of this process that it gets, by its numbers for them.
            folder: its working directory; None for that of this process.
            env: all its variables; None for those of this process.
            has_session: give it a session of its own.
        """
        command, variables = (
            [os.fsdecode(each) for each in args],
            os.environ if env is None else env,
        )
        # A fork of the program is no ancestor of the spare, and can't become the parent of what
        # that forks.
        if (
            os.getpid() != self._program
            or command[0] != sys.executable
            or not _is_understood(command[1:])
        ):
            return None
        request = {
            "args": command[1:],
            "folder": os.path.join(os.getcwd(), os.fsdecode(folder or "")),
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()},
            "new_session": has_session,
            "has_spare": CAN_ADOPT,
            "numbers": [*files],
            "ignored": [int(each) for each in signal.valid_signals() if _is_ignored(each)],
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        with self._lock:
            self._prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                with os.fdopen(ask(self._line, request, [*files.values()]), "rb") as reports:
                    number = reports.read(8)
            except BrokenPipeError:  # the spare was killed
                return None
            finally:
                self._prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return int.from_bytes(number, "little", signed=True) if number else None


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN and number not in _OF_EVERY_INTERPRETER


def _is_understood(command: Sequence[str]) -> bool:
    """True if `fork_server` can run what stands behind `python`."""
    options, rest = split(command)
    return bool(rest) and all(
        each in _OPTIONS or each.removeprefix("-W") in _ACTIONS for each in options
    )
