"""Our loop: fit, validate, test and predict over any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.trainer.hparams.hyperparameters import HasHyperparameters
    from core.trainer.loops.fit_call import FitCall
    from core.trainer.module.module import Module
    from core.trainer.settings.resume import Resume
    from core.trainer.settings.warn_at import warn_caller
    from core.trainer.stage_data.combined import CombinedLoader
    from core.trainer.stage_data.datamodule import DataModule
    from core.trainer.trainer import Trainer

__all__ = [
    "CombinedLoader",
    "DataModule",
    "FitCall",
    "HasHyperparameters",
    "Module",
    "Resume",
    "Trainer",
    "warn_caller",
]

__getattr__, __dir__ = lazy_exports(__name__)
