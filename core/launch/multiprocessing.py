"""Workers made by multiprocessing: spawn, fork and forkserver."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError, Launcher, LaunchError
from core.contract.rank_variables import rank_variables
from core.launch.call import LaunchedCall, read_result, write_result
from core.launch.channel import Channel, name_of, open_channel, signal_process
from core.launch.rank import STARTING
from core.launch.script import describe_interactive, refuse_interactive, refuse_nested
from core.launch.signal_forwarder import SignalForwarder
from core.launch.stop_others import Worker, WorkerGroup, start_all
from core.launch.thread_share import share_cores
from core.launch.worker import Membership, exit_on_signal

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import TypeAlias

    StartMethod: TypeAlias = Literal["spawn", "fork", "forkserver"]


_RESULT = "result"


class MultiprocessingLauncher(Launcher):
    """Runs the function in new processes, one a rank, and none of it in this one.

    Each `launch` makes its workers and ends with them. Tensors reach the workers as copies (a model
    isn't shared among the ranks by accident), and the result of the node's first rank comes back
    through a temporary file, its tensors on the CPU.

    Start methods:
        spawn: new interpreters, which import the program; works everywhere, and everything has to
            pickle.
        fork: copies of this process, where nothing has to pickle; not after CUDA was used. A worker
            computes with one thread, because the OpenMP runtime of torch's wheels doesn't survive a
            fork with more.
        forkserver: forks of a small server; everything has to pickle.

    Variables, set in the workers for other libraries, as torchrun sets them: RANK, LOCAL_RANK,
    WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK.
    """

    calls_in_place = False

    def __init__(self, start_method: StartMethod = "spawn") -> None:
        """Create the launcher.

        Args:
            start_method: one of those.
        """
        self.start_method: StartMethod = start_method
        self.pickles = start_method != "fork"

    def check(self) -> None:
        """Refuse where this start method can't work.

        Raises:
            LaunchError: why not, and what to use instead.
        """
        refuse_nested()
        if self.start_method == "fork":
            _refuse_fork()
        else:
            refuse_interactive(
                self.interactive_alias,
                f"the start method {self.start_method!r} has to import its file",
            )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in a new process for every rank. Returns the result of this node's first
        rank.

        Raises:
            LaunchError: processes can't be made here, or an argument can't be pickled; it is named.
            WorkerError: a worker failed; its traceback is the cause. The others have ended too.
        """
        self.check()
        if self.cluster_environment is None:
            raise ConfigurationError(
                "The launcher needs a cluster environment to tell ranks; call connect(...) first."
            )
        call = LaunchedCall.of(self.cluster_environment, function, args, kwargs)
        # Asked here, so that every worker gets the same.
        _ = call.environment.main_address, call.environment.main_port
        with tempfile.TemporaryDirectory(prefix="core-launch-") as directory:
            return self._run(call, Path(directory))

    def _run(self, call: LaunchedCall, directory: Path) -> Any:
        payload: Path | LaunchedCall = call
        if self.pickles:
            cure = (
                "Define it at the top level of a module, or use a strategy that forks or runs "
                "the script again."
            )
            payload = directory / "call"
            call.write(payload, who=f"The start method {self.start_method!r}", cure=cure)
        with SignalForwarder() as signals:
            group: WorkerGroup | None = None
            try:
                with signals.held():
                    node_rank = call.environment.node_rank()
                    indices = range(self.num_processes)
                    workers = start_all(
                        self._start(payload, directory, node_rank, each) for each in indices
                    )
                    group = WorkerGroup(workers, lambda failure: None)
                    signals.to(group)
                # Each worker runs the one function to its end; one that ends before has failed,
                # whatever its exit code.
                group.need(1)
                group.wait()
            finally:
                if group is not None:
                    group.stop("The main process was interrupted, and its workers end too.", 0)
                    # The next launch may fork, and a fork must not copy running threads.
                    group.join()
            signals.raise_for()
        if group.failure is not None:
            raise group.failure from group.failure.__cause__
        return read_result(directory / _RESULT)

    def _start(
        self,
        payload: Path | LaunchedCall,
        directory: Path,
        node_rank: int,
        local_rank: int,
    ) -> Worker:
        import torch.multiprocessing

        world = {
            "world_size": self.num_processes * self.num_nodes,
            "global_rank": node_rank * self.num_processes + local_rank,
            "local_rank": local_rank,
            "node_rank": node_rank,
        }
        # A forked copy of OpenMP's thread pool hangs, so a forked worker computes with one thread.
        num_sharing = self.num_processes * self.pickles
        context: Any = torch.multiprocessing.get_context(self.start_method)
        channel, end = open_channel()
        variables = rank_variables(**world, num_local=self.num_processes)
        with (
            end,
            _signals_blocked() if self.start_method == "fork" else nullcontext() as mask,
            _set(STARTING, name_of(end)),
        ):
            process = context.Process(
                target=_work,
                args=(
                    end,
                    payload,
                    world,
                    variables,
                    num_sharing,
                    directory,
                    mask,
                ),
                name=f"rank {world['global_rank']}",
            )
            process.start()
            # SIGIO on this socket wakes the worker when the main process writes, or dies.
            signal_process(end, process.pid)
        return Worker(world["global_rank"], process.pid, lambda: process.exitcode, channel)


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """Set a variable for a new interpreter."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextmanager
def _signals_blocked() -> Iterator[set[int]]:
    """Block Ctrl-C and SIGTERM for a fork, which has the main process's handlers until it has its
    own.

    What a handler raises in a function that runs after a fork is lost. Gives the mask that the
    worker is to have then.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(
    end: socket.socket,
    payload: Path | LaunchedCall,
    world: dict[str, int],
    variables: dict[str, str],
    num_sharing: int,
    directory: Path,
    mask: set[int] | None,
) -> None:
    """A worker's whole life. `num_sharing`: processes among which the cores are shared, 0 for one
    core.
    """
    import torch

    os.environ.update(variables)
    # A forked worker has the main process's handlers.
    signal.signal(signal.SIGTERM, exit_on_signal)
    signal.signal(signal.SIGINT, exit_on_signal)
    membership = Membership(Channel(end))
    membership.begin()
    if num_sharing:
        share_cores(num_sharing)
    else:
        torch.set_num_threads(1)
        # each collection would go through all that the main process holds, and copy its pages
        gc.freeze()
    try:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        call = payload if isinstance(payload, LaunchedCall) else LaunchedCall.read(payload)
        membership.report_progress(1, 0)
        outcome = call.run(**world)
        if world["local_rank"] == 0:
            write_result(outcome, directory / _RESULT)
        membership.report_progress(1, 1)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:
        membership.report(error)
        sys.exit(1)
    finally:
        # The main process removes the folder, if there still is one.
        if membership.is_orphaned:
            shutil.rmtree(directory, ignore_errors=True)


def _refuse_fork() -> None:
    import torch

    if torch.cuda.is_initialized():
        raise LaunchError(
            "CUDA was used in this process, and doesn't survive a fork. Use nothing of CUDA before "
            "training (no tensor on a device, no torch.cuda.synchronize), restart the notebook if "
            "this is one, or use the start method 'spawn'."
        )
    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.current_thread()
    ]
    # A notebook's own threads are always there, and idle while a cell runs.
    if others and describe_interactive() is None:
        raise LaunchError(
            f"This process has other threads ({', '.join(others)}). A fork copies the locks that "
            "they hold, but not the threads that would release them. End them first, or use the "
            "start method 'spawn'."
        )


spawn = partial(MultiprocessingLauncher, "spawn")
"""New interpreters that import the program."""
fork = partial(MultiprocessingLauncher, "fork")
"""Copies of this process."""
forkserver = partial(MultiprocessingLauncher, "forkserver")
"""Forks of a small server process."""
