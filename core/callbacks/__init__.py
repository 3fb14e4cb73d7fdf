"""What happens around training, apart from the research code."""

from core.callbacks.callback import Callback
from core.callbacks.model_checkpoint import ModelCheckpoint
from core.callbacks.progress_bar import ProgressBar

__all__ = ["Callback", "ModelCheckpoint", "ProgressBar"]
