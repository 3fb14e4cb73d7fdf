"""The two ways in which `core run` makes the ranks of a script: by itself on one node, and by
torchrun.

Ranks can't tell them apart. A failed one has shown its own error, so that a line about its end is
enough.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile

from core.cli.layout import say
from core.cluster.ports import reserve_port
from core.display.torchrun import first_to_show
from core.launch.channel import open_channel, signal_process
from core.launch.signal_forwarder import SignalForwarder
from core.launch.stop_others import Worker, WorkerGroup, start_all
from core.launch.timeouts import GRACE_S
from core.launch.worker_failure import describe_exit

_REPEATING = (
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.multiprocessing.errors.error_handler",
)
"""Loggers of torchrun that warn of the threads of a rank, and repeat how each has ended, in several
lines.
"""


def run_here(num_ranks: int, arguments: list[str]) -> int:
    """Run Python in each rank of this node. Nothing is imported here that takes long: ranks begin
    soon.

    A signal is handed on to the ranks, and a second one ends them. They end with this process,
    however that ends.

    Args:
        num_ranks: processes.
        arguments: those of Python.

    Returns:
        The code to exit with: 1 if a rank has failed, 130 after Ctrl-C.

    Raises:
        SystemExit: SIGTERM has ended the run.
    """
    group: _Ranks | None = None
    with tempfile.TemporaryDirectory(prefix="core-run-") as folder, SignalForwarder() as signals:
        shared = _shared_variables(num_ranks, reserve_port(signals), folder)
        try:
            with signals.held():
                ranks = start_all(
                    _start(rank, arguments, shared, folder) for rank in range(num_ranks)
                )
                group = _Ranks(ranks, lambda failure: None)
                signals.to(group)
            group.wait()
            signals.raise_for()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            if group is not None:
                group.kill()
        shown = first_to_show(folder)
    failure = group.failure
    if failure is None:
        return 0
    rank = failure.rank
    # The end of the one that has shown its error may take longer than that of others.
    if failure.exit_code == 1 and shown is not None:
        rank = shown
    _say_end(rank, -ranks[rank].pid, failure.exit_code or 0)
    return 1


class _Ranks(WorkerGroup):
    """Ranks that run any program: it gets signals, and no message."""

    def stop(self, message: str, rank: int, free: object = None) -> None:
        """Send SIGTERM to all that are left, and end those that take too long."""
        self.forward(signal.SIGTERM)
        self.wait(GRACE_S)
        self.kill()


def _shared_variables(num_ranks: int, port: int, folder: str) -> dict[str, str]:
    """The variables that torchrun sets for all ranks of one node. Of threads and NCCL the user's
    own come first.
    """
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if num_ranks > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    return {
        **defaults,
        **os.environ,
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_ranks)),
        **dict.fromkeys(
            ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"
        ),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": os.path.basename(folder),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _start(rank: int, arguments: list[str], shared: dict[str, str], folder: str) -> Worker:
    own = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    os.mkdir(f"{folder}/{rank}")
    own["TORCHELASTIC_ERROR_FILE"] = f"{folder}/{rank}/error.json"
    command = [sys.executable, "-u", *arguments]
    channel, end = open_channel()
    with end:
        process = subprocess.Popen(
            command, env=shared | own, pass_fds=[end.fileno()], start_new_session=True
        )
        signal_process(end, -process.pid)
    return Worker(rank, -process.pid, process.poll, channel)


def run_by_torchrun(arguments: list[str]) -> int:
    """Run torchrun in this process. Its own warnings and tracebacks are left out, unless LOGLEVEL
    asks for them.

    Args:
        arguments: those of torchrun.

    Returns:
        The code to exit with: 1 if a rank has failed, 128 and a signal's number if that has ended
        the run.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if "LOGLEVEL" in os.environ:
        run.main(arguments)
        return 0
    for name in _REPEATING:
        logging.getLogger(name).addFilter(lambda record: False)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _say_end(rank, failure.pid, failure.exitcode)
        return 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _say_end(rank: int, pid: int, exit_code: int) -> None:
    say(
        f"core run: Rank {rank} (pid {pid}) {describe_exit(exit_code)}, and the run with it.",
        err=True,
    )
