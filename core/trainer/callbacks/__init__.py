"""The callbacks: actions around training, apart from the research code. Each is imported when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.trainer.callbacks.adapters import LambdaCallback
    from core.trainer.callbacks.arguments import check_int
    from core.trainer.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
    from core.trainer.callbacks.checkpoints.on_exception_checkpoint import OnExceptionCheckpoint
    from core.trainer.callbacks.early_stopping import EarlyStopping
    from core.trainer.callbacks.model_summary import ModelSummary
    from core.trainer.callbacks.progress_bar.base import ProgressBar
    from core.trainer.callbacks.progress_bar.rich_progress_bar import RichProgressBar
    from core.trainer.callbacks.timer import Timer
    from core.trainer.hooks.callback import Callback, GoBack, StateKeeper

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
