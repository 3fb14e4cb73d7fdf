"""Runs the user's script once a rank."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import ClusterEnvironment, ConfigurationError, Launcher, LaunchError
from core.contract.rank_variables import rank_variables
from core.launch.channel import Channel, name_of, open_channel, signal_process
from core.launch.main_process import MainProcess
from core.launch.rank import STARTING, is_inherited, set_rank
from core.launch.script import refuse_interactive, refuse_nested, script_command
from core.launch.stop_others import Worker, start_all
from core.launch.thread_share import share_cores
from core.launch.worker import Membership, in_main_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _World(NamedTuple):
    """The number of processes, and the number of this one."""

    world_size: int
    global_rank: int
    local_rank: int
    node_rank: int
    num_local: int


class SubprocessScriptLauncher(Launcher):
    """Makes every rank but this one by running the user's script again; each comes to the same
    `launch` call.

    This process is the node's first rank, so that results stay where they are. The workers are
    **the process's**, not the launcher object's: they live until the script ends. A later `launch`,
    by this object or by another Trainer's, joins the same workers, which have come to the same call
    in their run of the script.

    Variables, set in all ranks for other libraries, as torchrun sets them: RANK, LOCAL_RANK,
    WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK. Variables, set for the workers: CORE_WORLD_SIZE,
    CORE_GLOBAL_RANK, MASTER_ADDR, MASTER_PORT; and CORE_CHANNEL, the line on which they hear of a
    rank that has failed.
    """

    def check(self) -> None:
        """Refuse where there is no script to run, or signals can't be handled.

        Raises:
            LaunchError: why not, and what to use instead.
        """
        if self.num_processes == 1:
            return
        refuse_nested()
        refuse_interactive(
            self.interactive_alias,
            "its processes are made by running the program's file once a rank",
        )
        if not in_main_thread():
            raise LaunchError(
                "Processes that run the script again can be made from the main thread only, where "
                "Python handles signals, and this is another. Call it from the main thread, or use "
                "a strategy that spawns."
            )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function on every rank, in this process on the node's first. Returns this rank's
        result.

        Raises:
            LaunchError: processes can't be made here, or those that exist are another number than
                is asked for.
            WorkerError: a worker ended first; its traceback is the cause.
        """
        _process.join(self)
        try:
            with _process.counted_launch():
                return function(*args, **kwargs)
        except BaseException as error:
            if _process.main is None:
                raise
            first = _process.main.explain(error)
            if first is error:
                raise
            raise first from first.__cause__

    def close(self) -> None:
        """Wait until the workers have finished the script; stop them if this process fails.
        Idempotent.
        """
        if _process.main is not None:
            _process.main.close()

    @property
    def environment(self) -> ClusterEnvironment:
        """The environment that was connected."""
        if self.cluster_environment is None:
            raise ConfigurationError(
                "The launcher needs a cluster environment to tell ranks; call connect(...) first."
            )
        return self.cluster_environment


class _Process:
    """The role of this process among the others; the same for all launchers in it, for as long as
    it lives.
    """

    def __init__(self) -> None:
        self.world: _World | None = None
        self.main: MainProcess | None = None
        self.membership: Membership | None = None
        self.num_begun = self.num_done = 0

    @contextmanager
    def counted_launch(self) -> Iterator[None]:
        """Publish to the other processes how far this one has come. An exception ends a launch, but
        leaving doesn't.
        """
        self.num_begun += 1
        self._report_progress()
        try:
            yield
        except Exception:
            self.num_done += 1
            self._report_progress()
            raise
        self.num_done += 1
        self._report_progress()

    def _report_progress(self) -> None:
        if self.membership is not None:
            self.membership.report_progress(self.num_begun, self.num_done)
        if self.main is not None and self.num_begun > self.num_done:
            self.main.need(self.num_begun)

    def join(self, launcher: SubprocessScriptLauncher) -> None:
        """Make the workers, or be one; then tell the environment the ranks."""
        if self.world is None:
            # The first launch of the process decides; all later ones join.
            self.world = self._join_as_worker() or self._start_workers(launcher)
            set_rank(self.world.global_rank, self.world.world_size)
            os.environ.update(rank_variables(**self.world._asdict()))
            share_cores(launcher.num_processes)
        wanted = launcher.num_processes * launcher.num_nodes
        if wanted != self.world.world_size:
            raise LaunchError(
                f"This script runs in {self.world.world_size} process(es) since its first launch, "
                f"and now devices={launcher.num_processes} and num_nodes={launcher.num_nodes} ask "
                f"for {wanted}. The number can't change within a script: use the same devices and "
                "num_nodes, or another script."
            )
        if self.main is not None:
            self.main.check()
        world = self.world._asdict()
        del world["num_local"]
        launcher.environment.set_world(**world)

    def _join_as_worker(self) -> _World | None:
        """The world that the main process has written into the environment, if this is its
        worker.
        """
        channel = os.environ.get("CORE_CHANNEL", "")
        # A process that a worker starts has the variable only.
        if not is_inherited(channel):
            return None
        number = int(channel.partition(":")[0])
        os.set_inheritable(number, False)
        self.membership = Membership(Channel(socket.socket(fileno=number)))
        self.membership.report_uncaught()
        self.membership.begin()
        names = (
            "CORE_WORLD_SIZE",
            "CORE_GLOBAL_RANK",
            "LOCAL_RANK",
            "NODE_RANK",
            "LOCAL_WORLD_SIZE",
        )
        return _World(*(int(os.environ[name]) for name in names))

    def _start_workers(self, launcher: SubprocessScriptLauncher) -> _World:
        launcher.check()
        node_rank = launcher.environment.node_rank()
        num_processes = launcher.num_processes
        first_rank = node_rank * num_processes
        world_size = num_processes * launcher.num_nodes
        worlds = [
            _World(world_size, first_rank + index, index, node_rank, num_processes)
            for index in range(num_processes)
        ]
        if num_processes > 1:
            command = script_command()
            environment = launcher.environment
            shared = {
                "MASTER_ADDR": environment.main_address,
                "MASTER_PORT": str(environment.main_port),
            }
            try:
                workers = start_all(_start(command, world, shared) for world in worlds[1:])
            except OSError as error:
                raise LaunchError(
                    f"{' '.join(command)!r} can't be started again: {error}"
                ) from error
            self.main = MainProcess(workers, first_rank, environment.main_port)
        return worlds[0]


def _start(command: list[str], world: _World, shared: dict[str, str]) -> Worker:
    channel, end = open_channel()
    with end:
        variables = {
            **rank_variables(**world._asdict()),
            STARTING: name_of(end),
            "CORE_WORLD_SIZE": str(world.world_size),
            "CORE_GLOBAL_RANK": str(world.global_rank),
            "CORE_CHANNEL": name_of(end),
        }
        process = subprocess.Popen(
            command, env=os.environ | shared | variables, pass_fds=[end.fileno()]
        )
        signal_process(end, process.pid)
    return Worker(world.global_rank, process.pid, process.poll, channel)


_process = _Process()
