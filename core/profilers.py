"""The profilers, which core-training brings; this is their public module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core_training.profilers import (
        AdvancedProfiler,
        Profiler,
        PyTorchProfiler,
        SimpleProfiler,
    )

__all__ = ["AdvancedProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

__getattr__, __dir__ = lazy_exports(__name__, open_to_plugins=True)
