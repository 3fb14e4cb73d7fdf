"""A scheduler announces that it will take the machine away: save, and ask it to run the job again."""

from __future__ import annotations

import logging
import posixpath
from typing import TYPE_CHECKING

from core.trainer.signals.interruption import Interrupted

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer


def warning_signals(trainer: Trainer) -> list[int]:
    """Signals by which the scheduler announces the end."""
    environment = trainer.strategy.cluster_environment
    return [environment.requeue_signal] if environment is not None and environment.requeue_signal is not None else []


def checkpoint_path(trainer: Trainer) -> str | None:
    """The path to which this job saves, and from which it resumes; None outside of a scheduler that runs jobs again."""
    environment = trainer.strategy.cluster_environment
    if environment is None or environment.requeue_signal is None or (job := environment.job_id()) is None:
        return None
    return posixpath.join(trainer.default_root_dir, f"requeue-{job}.ckpt")


def requeue_after(trainer: Trainer, error: BaseException) -> None:
    """All ranks. Save what can be saved, and ask for another run of the job, if `error` is the scheduler's warning."""
    if not isinstance(error, Interrupted) or error.signal not in warning_signals(trainer):
        return
    path = _save(trainer) if trainer.trains and error.is_agreed else None
    environment = trainer.strategy.cluster_environment
    if trainer.is_global_zero and environment is not None:
        saved = f"Step {trainer.global_step} is saved in {path}" if path else "Nothing new is saved"
        answer = "runs this job again" if environment.requeue() else "refuses to run this job again: start it by hand"
        trainer.print(f"{error.signal.name} came. {saved}; the scheduler {answer}.")


def _save(trainer: Trainer) -> str | None:
    path = checkpoint_path(trainer)
    if path is None:
        return None
    try:
        trainer.save_checkpoint(path)
    except Exception:
        logging.getLogger("core").exception("The state can't be saved to %s.", path)
        return None
    return path


def forget(trainer: Trainer) -> None:
    """All ranks, when training has come to its end: nothing is left to go on with."""
    path, strategy = checkpoint_path(trainer), trainer.strategy
    if path is not None:
        strategy.checkpoint_io.remove_checkpoint(path, collectives=trainer.session.collectives)
