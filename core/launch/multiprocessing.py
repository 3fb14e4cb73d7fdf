"""Workers made by multiprocessing: spawn, fork and forkserver."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from core.contract import ClusterEnvironment, ConfigurationError, Launcher, LaunchError
from core.launch.channel import Channel, open_channel, signal_process
from core.launch.cores import share_cores
from core.launch.group import Worker, WorkerGroup
from core.launch.handed_on import HandedOn
from core.launch.pickling import find_unpicklable
from core.launch.script import describe_interactive, refuse_interactive, refuse_nested, refuse_unguarded
from core.launch.worker import Membership, exit_on_signal

if TYPE_CHECKING:
    import socket
    from typing import TypeAlias

    StartMethod: TypeAlias = Literal["spawn", "fork", "forkserver"]


_RESULT = "result"


class _Call(NamedTuple):
    """What every worker runs. Pickled as a whole, so that the function's strategy holds this same environment."""

    environment: ClusterEnvironment
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random_state: dict[str, Any]


class MultiprocessingLauncher(Launcher):
    """Runs the function in new processes, one a rank, and none of it in this one.

    Each `launch` makes its workers and ends with them. Tensors reach the workers as copies (a model isn't shared among
    the ranks by accident), and the result of the node's first rank comes back through a temporary file, its tensors on
    the CPU.

    Start methods:
        spawn: new interpreters, which import the program; works everywhere, and everything has to pickle.
        fork: copies of this process, where nothing has to pickle; not after CUDA was used. A worker computes with one
            thread, because the OpenMP runtime of torch's wheels doesn't survive a fork with more.
        forkserver: forks of a small server; everything has to pickle.
    """

    calls_in_place = False

    def __init__(self, start_method: StartMethod = "spawn") -> None:
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
            refuse_interactive(self.interactive_alias, f"the start method {self.start_method!r} has to import its file")
            refuse_unguarded(self.start_method)

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in a new process for every rank. Returns the result of this node's first rank.

        Raises:
            LaunchError: processes can't be made here, or an argument can't be pickled; it is named.
            WorkerError: a worker failed; its traceback is the cause. The others have ended too.
        """
        self.check()
        if self.cluster_environment is None:
            raise ConfigurationError("The launcher needs a cluster environment to tell ranks; call connect(...) first.")
        call = _Call(self.cluster_environment, function, args, kwargs, _random_state())
        # Asked here, so that every worker gets the same.
        _ = call.environment.main_address, call.environment.main_port
        with tempfile.TemporaryDirectory(prefix="core-launch-") as directory:
            return self._run(call, Path(directory))

    def _run(self, call: _Call, directory: Path) -> Any:
        import torch

        payload = self._write(call, directory) if self.pickles else call
        with HandedOn() as signals:
            workers = self._start_all(payload, directory, call.environment.node_rank())
            group = WorkerGroup(workers, lambda failure: None)
            try:
                signals.to(group)
                group.wait()
            finally:
                group.stop("The main process was interrupted, and its workers end too.", 0)
                group.join()
            signals.raise_for()
        if group.failure is not None:
            raise group.failure from group.failure.__cause__
        # Our own file, in a directory of our own.
        return torch.load(directory / _RESULT, map_location="cpu", weights_only=False)

    def _write(self, call: _Call, directory: Path) -> Path:
        import torch

        path = directory / "call"
        try:
            torch.save(call, path)
        except Exception as error:
            raise LaunchError(self._describe_unpicklable(call, error)) from error
        return path

    def _describe_unpicklable(self, call: _Call, error: Exception) -> str:
        receiver = getattr(call.function, "__self__", None)
        candidates = {"function": receiver if receiver is not None else call.function}
        candidates |= {f"argument {index}": value for index, value in enumerate(call.args)} | call.kwargs
        candidates["cluster_environment"] = call.environment
        if receiver is not None:
            candidates[type(receiver).__name__.lower()] = candidates.pop("function")
        found = (find_unpicklable(value, name) for name, value in candidates.items())
        path, cause = next(filter(None, found), ("a part of it", error))
        return (
            f"The start method {self.start_method!r} pickles what its workers need, and {path} can't be pickled: "
            f"{cause} Define it at the top level of a module, or use a strategy that forks or runs the script again."
        )

    def _start_all(self, payload: Path | _Call, directory: Path, node_rank: int) -> list[Worker]:
        started: list[Worker] = []
        try:
            started.extend(self._start(payload, directory, node_rank, index) for index in range(self.num_processes))
        except BaseException:
            # Hanging up ends those that run.
            for worker in started:
                worker.channel.close()
            raise
        return started

    def _start(self, payload: Path | _Call, directory: Path, node_rank: int, local_rank: int) -> Worker:
        import torch.multiprocessing

        world = {
            "world_size": self.num_processes * self.num_nodes,
            "global_rank": node_rank * self.num_processes + local_rank,
            "local_rank": local_rank,
            "node_rank": node_rank,
        }
        num_sharing = 0 if self.start_method == "fork" else self.num_processes
        context: Any = torch.multiprocessing.get_context(self.start_method)
        channel, end = open_channel()
        with end:
            process = context.Process(
                target=_work,
                args=(end, payload, world, num_sharing, directory),
                name=f"rank {world['global_rank']}",
            )
            process.start()
            signal_process(end, process.pid)
        return Worker(world["global_rank"], process.pid, lambda: _wait(process), channel)


def _random_state() -> dict[str, Any]:
    """Of all generators: a worker goes on from there however it is made, so that the user's seed holds in it too."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def _wait(process: Any) -> int:
    process.join()
    return int(process.exitcode or 0)


def _work(end: socket.socket, payload: Path | _Call, world: dict[str, int], num_sharing: int, directory: Path) -> None:
    """A worker's whole life. `num_sharing`: processes among which the cores are shared, 0 for one core."""
    import torch

    # A forked worker has the main process's handlers.
    signal.signal(signal.SIGTERM, exit_on_signal)
    signal.signal(signal.SIGINT, exit_on_signal)
    membership = Membership(Channel(end))
    membership.begin()
    if num_sharing:
        share_cores(num_sharing)
    else:
        torch.set_num_threads(1)
    try:
        call = payload if isinstance(payload, _Call) else _load(payload)
        call.environment.set_world(**world)
        _set_random_state(call.random_state)
        outcome = call.function(*call.args, **call.kwargs)
        if world["local_rank"] == 0:
            _hand_back(outcome, directory)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:
        membership.report(error)
        sys.exit(1)
    finally:
        if membership.is_orphaned:
            shutil.rmtree(directory, ignore_errors=True)


def _hand_back(outcome: Any, directory: Path) -> None:
    """What the function returned on rank 0, for the caller.

    Raises:
        LaunchError: a part of it doesn't pickle; it is named.
    """
    import torch

    try:
        torch.save(outcome, directory / _RESULT)
    except Exception as error:
        path, cause = find_unpicklable(outcome, "result") or ("a part of it", error)
        raise LaunchError(
            f"What the function returns on rank 0 is pickled for the caller, and {path} can't be: "
            f"{str(cause).rstrip('.')}. "
            "Return tensors and plain values, and save what is larger or in parts with a checkpoint."
        ) from error


def _load(path: Path) -> _Call:
    import torch

    call: _Call = torch.load(path, map_location="cpu", weights_only=False)  # written by our own main process
    return call


def _refuse_fork() -> None:
    import torch

    if not hasattr(os, "fork"):
        raise LaunchError("This system has no fork. Use the start method 'spawn'.")
    if torch.cuda.is_initialized():
        raise LaunchError(
            "CUDA was used in this process, and doesn't survive a fork. Use nothing of CUDA before training (no tensor "
            "on a device, no torch.cuda.synchronize), restart the notebook if this is one, or use the start method "
            "'spawn'."
        )
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    # A notebook's own threads are always there, and idle while a cell runs.
    if others and describe_interactive() is None:
        raise LaunchError(
            f"This process has other threads ({', '.join(others)}). A fork copies the locks that they hold, but not "
            "the threads that would release them. End them first, or use the start method 'spawn'."
        )


def spawn() -> MultiprocessingLauncher:
    """New interpreters that import the program."""
    return MultiprocessingLauncher("spawn")


def fork() -> MultiprocessingLauncher:
    """Copies of this process."""
    return MultiprocessingLauncher("fork")


def forkserver() -> MultiprocessingLauncher:
    """Forks of a small server process."""
    return MultiprocessingLauncher("forkserver")
