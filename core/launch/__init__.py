"""Make the processes, when the cluster has not: in place, by running the script again, or by
multiprocessing.

How a run ends is the same for all of them. The rank that fails first is named, and its traceback
comes first; the others get an exception that says so and time for their `finally` blocks. No
process is left, however a rank dies.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.contract.rank_variables import rank_variables
    from core.launch.call import LaunchedCall, read_result, write_result
    from core.launch.connections import hang_up
    from core.launch.in_place import InPlaceLauncher
    from core.launch.multiprocessing import MultiprocessingLauncher, fork, forkserver, spawn
    from core.launch.rank import known_rank
    from core.launch.signal_forwarder import SignalForwarder
    from core.launch.subprocess_script import SubprocessScriptLauncher
    from core.launch.timeouts import ECHO_S, GRACE_S, LOOK_S
    from core.launch.worker import exit_on_signal
    from core.launch.worker_failure import WorkerFailure, worker_error

__all__ = [
    "ECHO_S",
    "GRACE_S",
    "LOOK_S",
    "InPlaceLauncher",
    "LaunchedCall",
    "MultiprocessingLauncher",
    "SignalForwarder",
    "SubprocessScriptLauncher",
    "WorkerFailure",
    "exit_on_signal",
    "fork",
    "forkserver",
    "hang_up",
    "known_rank",
    "rank_variables",
    "read_result",
    "spawn",
    "worker_error",
    "write_result",
]

__getattr__, __dir__ = lazy_exports(__name__, kind="launcher")
