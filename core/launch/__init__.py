"""Make the processes, when the cluster has not: in place, by running the script again, or by multiprocessing.

How a run ends is the same for all of them. The rank that fails first is named, and its traceback comes first; the
others get an exception that says so and time for their `finally` blocks; nothing is left, whatever kills whom.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.launch.in_place import InPlaceLauncher
    from core.launch.multiprocessing import MultiprocessingLauncher, fork, forkserver, spawn
    from core.launch.subprocess_script import SubprocessScriptLauncher

__all__ = [
    "InPlaceLauncher",
    "MultiprocessingLauncher",
    "SubprocessScriptLauncher",
    "fork",
    "forkserver",
    "spawn",
]

_MODULES = {
    "InPlaceLauncher": "core.launch.in_place",
    "MultiprocessingLauncher": "core.launch.multiprocessing",
    "SubprocessScriptLauncher": "core.launch.subprocess_script",
    "fork": "core.launch.multiprocessing",
    "forkserver": "core.launch.multiprocessing",
    "spawn": "core.launch.multiprocessing",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="launcher", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
