"""A checkpoint when something goes wrong."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

from core_training.hooks.callback import Callback
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from torch import nn

    from core.contract import PathLike
    from core_training.views.trainer_views import TrainerViews


class OnExceptionCheckpoint(Callback):
    """Saves when an exception ends `fit`, such as Ctrl-C or an error in the module.

    With several processes this can't be done, since the others go on waiting for each other; a
    warning says so.
    """

    runs_last = leaves_traces = True

    FILE_EXTENSION = ".ckpt"
    """Ends the name."""

    def __init__(self, dirpath: PathLike, filename: str = "on_exception") -> None:
        """Create the callback.

        Args:
            dirpath: a folder or URL.
            filename: without its ending `.ckpt`. What is there is overwritten.
        """
        self.ckpt_path = posixpath.join(os.path.expanduser(dirpath), filename + self.FILE_EXTENSION)

    def on_exception(
        self, trainer: TrainerViews, module: nn.Module, exception: BaseException
    ) -> None:
        """Save, and print where."""
        if trainer.stage == "fit" and can_save_after(trainer, exception):
            save_after(trainer, self.ckpt_path, exception)


def can_save_after(trainer: TrainerViews, exception: BaseException) -> bool:
    """True if this process may save by itself, before `exception` ends the run. If not, a warning
    says so.

    All ranks write a checkpoint together, and an exception may have come on one of them alone: it
    would wait for the others for ever, in any collective.
    """
    if trainer.world_size == 1 or getattr(exception, "is_agreed", False):
        return True
    warn_caller(
        f"{type(exception).__name__} came in a run of {trainer.world_size} processes, which can't "
        "be brought to save together now. Save every so many steps: "
        "ModelCheckpoint(every_n_train_steps=...).",
    )
    return False


def save_after(
    trainer: TrainerViews, path: str, exception: BaseException, *, weights_only: bool = False
) -> None:
    """Save, and print where. Batches of an unfinished accumulation window don't count.

    A failure to save is a warning: the exception is what the user must see.
    """
    try:
        trainer.save_checkpoint(path, weights_only=weights_only)
    except Exception as error:
        warn_caller(f"The state can't be saved to {path} after {type(exception).__name__}: {error}")
        return
    trainer.print(
        f"{type(exception).__name__}: the state after step {trainer.global_step} is saved in {path}"
    )
