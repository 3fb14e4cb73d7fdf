"""The callbacks: actions around training, apart from the research code. Each is imported when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core_training.callbacks.adapters import LambdaCallback
    from core_training.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
    from core_training.callbacks.checkpoints.on_exception_checkpoint import OnExceptionCheckpoint
    from core_training.callbacks.early_stopping import EarlyStopping
    from core_training.callbacks.model_summary import ModelSummary
    from core_training.callbacks.progress_bar.base import ProgressBar
    from core_training.callbacks.progress_bar.rich_progress_bar import RichProgressBar
    from core_training.callbacks.timer import Timer
    from core_training.hooks.callback import Callback, GoBack, StateKeeper
    from core_training.settings.callback_arguments import check_int

__all__ = [
    "Callback",
    "EarlyStopping",
    "GoBack",
    "LambdaCallback",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichProgressBar",
    "StateKeeper",
    "Timer",
    "check_int",
]

__getattr__, __dir__ = lazy_exports(__name__)
