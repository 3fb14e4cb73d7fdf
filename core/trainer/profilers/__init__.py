"""The profilers: measurements of a run's time. Imported when a trainer is given a profiler, and not before."""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.trainer.profilers.advanced import AdvancedProfiler
    from core.trainer.profilers.profiler import Profiler
    from core.trainer.profilers.pytorch import PyTorchProfiler
    from core.trainer.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

__getattr__, __dir__ = lazy_exports(__name__)
