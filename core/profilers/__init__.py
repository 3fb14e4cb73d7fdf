"""Where the time of a run goes. Imported when a trainer is given a profiler, and not before."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.profilers.advanced import AdvancedProfiler
    from core.profilers.profiler import Profiler
    from core.profilers.pytorch import PyTorchProfiler
    from core.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

_MODULES = {
    "AdvancedProfiler": "core.profilers.advanced",
    "Profiler": "core.profilers.profiler",
    "PyTorchProfiler": "core.profilers.pytorch",
    "SimpleProfiler": "core.profilers.simple",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
