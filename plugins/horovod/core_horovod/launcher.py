"""Horovod's own runner: it makes a process a rank, and a server at which they meet."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError, Launcher, LaunchError, WorkerError
from core.launch import LaunchedCall, read_result
from core_horovod import library

if TYPE_CHECKING:
    from collections.abc import Callable

CALL, RESULT, ENDED, ERROR = "call", "result", "ended", "error-"
"""Files of a launch: what to call, what it returned on rank 0, which rank ended first, and why a
rank failed.
"""

_PICKLE = "cloudpickle"
_CURE = "Make it in the function that is launched."
_SIGNALLED = 128
_PATIENCE_S = 30


class _RanksTraceback(Exception):
    """The traceback of a rank, as its own process has made it."""


class HorovodLauncher(Launcher):
    """Runs the function in processes that Horovod's runner makes, and none of it in this one.

    The runner is a program of its own, `horovodrun --gloo`, which ends with this process, however
    that ends. What the ranks need is pickled by cloudpickle, which takes functions and classes of
    the program itself along. Rank 0's result comes back through a file, its tensors on the CPU. The
    ranks' output has their number before each line.
    """

    calls_in_place = False
    pickles = True

    def check(self) -> None:
        """Refuse several nodes, whose hosts horovodrun needs, and a machine without Horovod.

        Raises:
            LaunchError: what to do instead.
            PluginLoadError: Horovod isn't installed, or can't be imported.
        """
        if self.num_nodes > 1:
            hosts = ",".join(
                f"host{number}:{self.num_processes}" for number in range(1, self.num_nodes + 1)
            )
            raise LaunchError(
                f"num_nodes={self.num_nodes}: Horovod's runner has to be told the hosts. Start the "
                f"script with `horovodrun -np {self.num_processes * self.num_nodes} -H {hosts} "
                "python train.py`."
            )
        library.load("horovod.runner")

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in a new process for every rank. Returns rank 0's result.

        Raises:
            LaunchError: an argument or the result can't be pickled.
            WorkerError: a rank failed; its traceback is the cause.
        """
        self.check()
        if self.cluster_environment is None:
            raise ConfigurationError(
                "The launcher needs a cluster environment to tell ranks; call connect(...) first."
            )
        environment = self.cluster_environment
        # asked here, so that every rank gets the same
        _ = environment.main_address, environment.main_port
        call = LaunchedCall.of(environment, function, args, kwargs)
        with tempfile.TemporaryDirectory(prefix="core-launch-") as name:
            folder = Path(name)
            torch.save({"path": sys.path, "argv": sys.argv}, folder / f"{CALL}-place")
            call.write(
                folder / CALL,
                who="The launcher 'horovod'",
                cure=_CURE,
                pickle_module=library.load(_PICKLE),
            )
            self._run(folder)
            return read_result(folder / RESULT)

    def _run(self, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "core_horovod.runner",
            str(folder),
            str(self.num_processes),
        ]
        # The runner ends when the other end of its standard input does, and so with this process.
        runner = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            code = runner.wait()
        finally:
            assert runner.stdin is not None
            with suppress(OSError):
                runner.stdin.close()
            try:
                runner.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                runner.kill()
                runner.wait()
        if code:
            raise _first_error(folder, code)


def _is_echo(file: Path) -> bool:
    """True if Horovod has notified the rank that another one ended, perhaps before that one could
    write its error.
    """
    return file.read_text().startswith(("ConnectionError", "HorovodInternalError"))


def _first_error(folder: Path, code: int) -> WorkerError:
    ended = (folder / ENDED).read_text().split() if (folder / ENDED).exists() else []
    # The others fail because of the first, and so after it. A rank that was killed has written
    # nothing.
    files = sorted(
        folder.glob(f"{ERROR}*"), key=lambda file: (_is_echo(file), file.stat().st_mtime_ns)
    )
    if ended and not (folder / f"{ERROR}{ended[0]}").exists():
        rank, code = map(int, ended)
        how = (
            f"by {signal.Signals(code - _SIGNALLED).name}"
            if code > _SIGNALLED
            else "before its work was done"
        )
        return WorkerError(
            f"Rank {rank} was ended {how}, with exit code {code}.", rank=rank, exit_code=code
        )
    if not files:
        return WorkerError(
            f"Horovod's runner ended with exit code {code}; see what it has printed.", rank=-1
        )
    rank, (what, _, trace) = (
        int(files[0].name.removeprefix(ERROR)),
        files[0].read_text().partition("\n"),
    )
    error = WorkerError(
        f"Rank {rank} failed with {what}", rank=rank, exit_code=1, worker_traceback=trace
    )
    error.__cause__ = _RanksTraceback(f"\n\n{trace}")
    return error
