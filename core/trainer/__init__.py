"""Our loop: fit, validate, test and predict over any strategy."""

from core.trainer.combined import CombinedLoader
from core.trainer.datamodule import DataModule
from core.trainer.module import Module
from core.trainer.trainer import Trainer

__all__ = ["CombinedLoader", "DataModule", "Module", "Trainer"]
