"""Our loop: fit, validate and test over any strategy."""

from core.trainer.module import Module
from core.trainer.trainer import Trainer

__all__ = ["Module", "Trainer"]
