"""A checkpoint when something goes wrong."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

from core.trainer.callbacks.checkpoints.exception_save import can_save_after, save_after
from core.trainer.hooks.callback import Callback

if TYPE_CHECKING:
    from torch import nn

    from core.contract import PathLike
    from core.trainer.views.trainer_views import TrainerViews


class OnExceptionCheckpoint(Callback):
    """Saves when an exception ends `fit`, such as Ctrl-C or an error in the module.

    With several processes this can't be done, since the others go on waiting for each other; a warning says so.
    """

    runs_last = True

    FILE_EXTENSION = ".ckpt"
    """Ends the name."""

    def __init__(self, dirpath: PathLike, filename: str = "on_exception") -> None:
        """Create the callback.

        Args:
            dirpath: a folder or URL.
            filename: without its ending `.ckpt`. What is there is overwritten.
        """
        self.ckpt_path = posixpath.join(os.path.expanduser(dirpath), filename + self.FILE_EXTENSION)

    def on_exception(self, trainer: TrainerViews, module: nn.Module, exception: BaseException) -> None:
        """Save, and print where."""
        if trainer.stage == "fit" and can_save_after(trainer, exception):
            save_after(trainer, self.ckpt_path, exception)
