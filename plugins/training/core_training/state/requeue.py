"""A scheduler announces that it will take the machine away: save, and ask it to run the job
again.
"""

from __future__ import annotations

import logging
import posixpath
from typing import TYPE_CHECKING

from core_training.signals.interruption import Interrupted

if TYPE_CHECKING:
    from core_training.run import Run


def warning_signals(run: Run) -> list[int]:
    """Signals by which the scheduler announces the end."""
    environment = run.strategy.cluster_environment
    if environment is None or environment.requeue_signal is None:
        return []
    return [environment.requeue_signal]


def checkpoint_path(run: Run) -> str | None:
    """The path to which this job saves, and from which it resumes; None outside of a scheduler that
    runs jobs again.
    """
    environment = run.strategy.cluster_environment
    if environment is None or not warning_signals(run):
        return None
    job = environment.job_id()
    if job is None:
        return None
    return posixpath.join(run.default_root_dir, f"requeue-{job}.ckpt")


def requeue_after(run: Run, error: BaseException) -> None:
    """All ranks. Save what can be saved, and ask for another run of the job, if `error` is the
    scheduler's warning.
    """
    if not isinstance(error, Interrupted) or error.signal not in warning_signals(run):
        return
    saved = "Nothing new is saved"
    path = checkpoint_path(run)
    if run.trains and error.is_agreed and path is not None:
        from core_training.state import saving  # who isn't interrupted waits for none of it

        try:
            saving.save_at_step(run, path, weights_only=False)
            saved = f"Step {run.progress.global_step} is saved in {path}"
        except Exception:
            logging.getLogger("core").exception("The state can't be saved to %s.", path)
    environment = run.strategy.cluster_environment
    if run.strategy.is_global_zero and environment is not None:
        answer = "refuses to run this job again: start it by hand"
        if environment.requeue():
            answer = "runs this job again"
        run.fabric.print(f"{error.signal.name} came. {saved}; the scheduler {answer}.")


def forget(run: Run) -> None:
    """All ranks, when training has come to its end: nothing is left to go on with."""
    path = checkpoint_path(run)
    if path is not None:
        run.strategy.checkpoint_io.remove_checkpoint(path, collectives=run.session.collectives)
