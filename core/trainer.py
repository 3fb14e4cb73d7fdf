"""The Trainer and its parts, which core-training brings; this is their public module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core_training import (
        CombinedLoader,
        DataModule,
        EventHooks,
        FitCall,
        HasHyperparameters,
        LoopPolicy,
        Module,
        Resume,
        Trainer,
        warn_caller,
    )

__all__ = [
    "CombinedLoader",
    "DataModule",
    "EventHooks",
    "FitCall",
    "HasHyperparameters",
    "LoopPolicy",
    "Module",
    "Resume",
    "Trainer",
    "warn_caller",
]

__getattr__, __dir__ = lazy_exports(__name__)
