"""Our loop: fit, validate, test and predict over any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import __version__ as version_of_base
from core.lazy_exports import lazy_exports
from core_training._version import __version__

if TYPE_CHECKING:
    from core_training.hooks.event_hooks import EventHooks
    from core_training.hooks.loop_policy import LoopPolicy
    from core_training.hparams.hyperparameters import HasHyperparameters
    from core_training.loops.fit_call import FitCall
    from core_training.module.module import Module
    from core_training.settings.resume import Resume
    from core_training.settings.warn_at import warn_caller
    from core_training.stage_data.combined import CombinedLoader
    from core_training.stage_data.datamodule import DataModule
    from core_training.trainer import Trainer

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

if version_of_base != __version__:
    raise ImportError(
        f"core-training {__version__} is a part of core {__version__}, and core-base "
        f"{version_of_base} is installed: `pip install core-base=={__version__}`."
    )

__getattr__, __dir__ = lazy_exports(__name__)
