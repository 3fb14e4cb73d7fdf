"""torch_xla's own launch: it makes a process for each chip, and one thread in it for each device of
the chip.
"""

from __future__ import annotations

import tempfile
import traceback
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Found, Launcher, LaunchError, WorkerError
from core.launch import LaunchedCall, read_result, write_result
from core_xla import detection, library

if TYPE_CHECKING:
    from collections.abc import Callable

_CALL, _RESULT = "call", "result"


class XLALauncher(Launcher):
    """Runs the function in the processes that `torch_xla.launch` makes, and none of it in this one.

    Each launch makes its processes and ends with them; everything has to pickle. Rank 0's result
    comes back through a file, its tensors on the CPU.
    """

    calls_in_place = False
    pickles = True

    def check(self) -> None:
        """Refuse several devices as threads of one process, fewer than are here, and a process that
        uses them already.

        Raises:
            LaunchError: why, and what to use instead.
        """
        if self.num_processes > 1 and detection.runs_devices_as_threads():
            raise LaunchError(
                f"{self.num_processes} devices were asked for, and torch_xla would run them as "
                "threads of one process here, as it does on the processor and on TPU v2 and v3. "
                "There each thread compiles graphs of its own: collectives wait for each other in "
                "vain, or do nothing without a word. Use strategy='xla_spmd', which trains on all "
                "of them from one thread; strategy='xla' needs a TPU from v4 on."
            )
        found = detection.detect()
        if (
            isinstance(found, Found)
            and found.count > self.num_processes
            and not detection.plays_devices()
        ):
            raise LaunchError(
                f"torch_xla's launch makes a process for each of the {found.count} TPUs that are "
                f"here, and devices={self.num_processes} were asked for. Use "
                f"devices={found.count}, or strategy='single_xla' for one."
            )
        if library.has_begun():
            raise LaunchError(
                "This process uses a device of XLA already, and torch_xla can't hand it to the "
                "processes that it makes. Touch no such device before training, or use "
                "strategy='xla_spmd'."
            )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in a process for every device of this node. Returns the result of its
        first rank.

        Raises:
            LaunchError: processes can't be made here, or an argument can't be pickled.
            WorkerError: a rank failed; it carries the rank's traceback.
        """
        self.check()
        if self.cluster_environment is None:
            raise ConfigurationError(
                "The launcher needs a cluster environment to tell ranks; call connect(...) first."
            )
        environment = self.cluster_environment
        # asked here, so that every process gets the same
        _ = environment.main_address, environment.main_port
        call = LaunchedCall.of(environment, function, args, kwargs)
        with tempfile.TemporaryDirectory(prefix="core-launch-") as name:
            folder = Path(name)
            call.write(
                folder / _CALL,
                who="torch_xla's launch",
                cure="Define it at the top level of a module.",
            )
            self._run(folder, environment.node_rank())
            return read_result(folder / _RESULT)

    def _run(self, folder: Path, node_rank: int) -> None:
        try:
            library.torch_xla().launch(
                _work, args=(folder, self.num_processes, self.num_nodes, node_rank)
            )
        except BrokenProcessPool as error:
            raise _first_error(folder) or WorkerError(
                f"A process of torch_xla's launch has ended before its work did: {error}", rank=-1
            ) from error
        except Exception as error:
            first = _first_error(folder)
            if first is None:
                raise
            raise first from error


def _work(ordinal: int, folder: Path, num_processes: int, num_nodes: int, node_rank: int) -> None:
    """A rank's whole life. `ordinal`: its number among all devices, as torch_xla counts them."""
    try:
        local_rank = library.torch_xla("runtime").local_ordinal()
        outcome = LaunchedCall.read(folder / _CALL).run(
            world_size=num_processes * num_nodes,
            global_rank=node_rank * num_processes + local_rank,
            local_rank=local_rank,
            node_rank=node_rank,
        )
        if local_rank == 0:
            write_result(outcome, folder / _RESULT)
    except BaseException as error:
        (folder / f"error-{ordinal}").write_text(
            f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        )
        raise


def _first_error(folder: Path) -> WorkerError | None:
    """The error of the rank that wrote one first."""
    # The others fail because of the first, and so after it.
    files = sorted(folder.glob("error-*"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        return None
    rank, (what, _, trace) = (
        int(files[0].name.rpartition("-")[2]),
        files[0].read_text().partition("\n"),
    )
    return WorkerError(
        f"Rank {rank} failed: {what}\n\n{trace}", rank=rank, exit_code=1, worker_traceback=trace
    )
