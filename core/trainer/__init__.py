"""Our loop: fit, validate, test and predict over any strategy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.trainer.combined import CombinedLoader
    from core.trainer.datamodule import DataModule
    from core.trainer.module import Module
    from core.trainer.trainer import Trainer

__all__ = ["CombinedLoader", "DataModule", "Module", "Trainer"]

_HOMES = {"CombinedLoader": "combined", "DataModule": "datamodule", "Module": "module", "Trainer": "trainer"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'core.trainer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"core.trainer.{_HOMES[name]}"), name)
