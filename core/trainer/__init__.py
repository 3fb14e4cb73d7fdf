"""Our loop: fit, validate, test and predict over any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.trainer.data.combined import CombinedLoader
    from core.trainer.data.datamodule import DataModule
    from core.trainer.hparams.hyperparameters import HasHyperparameters
    from core.trainer.module.module import Module
    from core.trainer.trainer import Trainer
    from core.trainer.tuner import Tuner

__all__ = ["CombinedLoader", "DataModule", "HasHyperparameters", "Module", "Trainer", "Tuner"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        ".data.combined": ("CombinedLoader",),
        ".data.datamodule": ("DataModule",),
        ".hparams.hyperparameters": ("HasHyperparameters",),
        ".module.module": ("Module",),
        ".trainer": ("Trainer",),
        ".tuner": ("Tuner",),
    },
)
