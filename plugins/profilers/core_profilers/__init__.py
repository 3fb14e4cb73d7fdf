"""Profilers: measurements of where a run's time goes. `Trainer(profiler="simple")` and its like
make them.

from core.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
"""

from core_profilers._version import __version__
from core_profilers.advanced import AdvancedProfiler
from core_profilers.pytorch import PyTorchProfiler
from core_profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PyTorchProfiler", "SimpleProfiler", "__version__"]
