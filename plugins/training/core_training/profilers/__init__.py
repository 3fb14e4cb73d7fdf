"""Profilers: measurements of where a run's time goes. `Trainer(profiler="simple")` and its like
make them.

from core.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core_training.profilers.advanced import AdvancedProfiler
    from core_training.profilers.profiler import Profiler
    from core_training.profilers.pytorch import PyTorchProfiler
    from core_training.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

__getattr__, __dir__ = lazy_exports(__name__)
