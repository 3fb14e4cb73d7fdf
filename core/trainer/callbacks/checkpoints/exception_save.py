"""Saving when an exception ends the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.trainer.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from core.trainer.views.trainer_views import TrainerViews


def can_save_after(trainer: TrainerViews, exception: BaseException) -> bool:
    """True if this process may save by itself, before `exception` ends the run. If not, a warning says so.

    All ranks write a checkpoint together, and an exception may have come on one of them alone: it would wait for the
    others for ever, in any collective.
    """
    if trainer.world_size == 1 or getattr(exception, "is_agreed", False):
        return True
    warn_caller(
        f"{type(exception).__name__} came in a run of {trainer.world_size} processes, which can't be brought to save "
        "together now. Save every so many steps: ModelCheckpoint(every_n_train_steps=...).",
    )
    return False


def save_after(trainer: TrainerViews, path: str, exception: BaseException, *, weights_only: bool = False) -> None:
    """Save, and print where. Batches of an unfinished accumulation window don't count.

    A failure to save is a warning: the exception is what the user must see.
    """
    try:
        trainer.save_checkpoint(path, weights_only=weights_only)
    except Exception as error:
        warn_caller(f"The state can't be saved to {path} after {type(exception).__name__}: {error}")
        return
    trainer.print(f"{type(exception).__name__}: the state after step {trainer.global_step} is saved in {path}")
