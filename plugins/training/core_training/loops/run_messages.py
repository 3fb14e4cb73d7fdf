"""The lines about a run as a whole, on rank 0: from where it goes on, why it ends early, and what
is saved of it.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from core.watch import phase

if TYPE_CHECKING:
    from core_training.loops.stop_agreement import StopAgreement
    from core_training.run import Run


def print_beginning(run: Run) -> None:
    """All ranks, once the checkpoint is restored. Print from where the run goes on, or whose
    weights are evaluated.
    """
    others = run.resume.describe() if run.resume is not None else ""
    if run.ckpt_path is None or not (_has_bar(run) or others):
        return
    progress = run.progress
    if not run.trains:
        run.fabric.print(f"{run.stage}: weights of {run.ckpt_path}")
        return
    where = f"epoch {progress.epoch}"
    if progress.batch:
        where += f", batch {progress.batch}"
    run.fabric.print(f"Resumed from {run.ckpt_path}: {where}, step {progress.global_step}{others}")


def print_early_end(run: Run, reason: str) -> None:
    """All ranks, after the training loop. Print what has ended it, if it wasn't `max_epochs`."""
    if reason and _has_bar(run):
        run.fabric.print(
            f"Training has ended after step {run.progress.global_step}: {reason} "
            f"{_what_is_saved(run)}"
        )


def write_useless_end(run: Run) -> None:
    """Write a line on rank 0 if the loss was NaN or infinite to the end of training."""
    if run.logged.losses.end and run.strategy.is_global_zero:
        _write(run, run.logged.losses.end)


def write_interruption(run: Run) -> None:
    """Write a line on rank 0 if a signal has ended `fit`."""
    number = run.signals.signal
    if number is None or run.stage != "fit" or not run.strategy.is_global_zero:
        return
    name, step = signal.Signals(number).name, run.progress.global_step
    _write(run, f"{name} has stopped training after step {step}.")


def early_end(run: Run, stops: StopAgreement) -> str:
    """The limit or the request that has ended training, a sentence; empty if it was
    `max_epochs`.
    """
    options, progress = run.options, run.progress
    if 0 <= options.max_steps <= progress.global_step:
        return f"max_steps={options.max_steps}."
    if stops.is_late:
        return f"max_time={str(options.max_time)!r} is over."
    if not stops.is_asked:
        return ""
    return run.stop_reason or "trainer.should_stop was set."


def _write(run: Run, text: str) -> None:
    sys.stderr.write(f"{text} {_what_is_saved(run)}\n")
    sys.stderr.flush()


def _what_is_saved(run: Run) -> str:
    if run.logged.losses.since is not None:
        return _what_is_finite(run, run.logged.losses.since)
    if run.newest_save is not None:
        path, step = run.newest_save
        return f"The newest checkpoint holds step {step}: ckpt_path={str(path)!r} goes on from it."
    if run.ckpt_path is not None:
        return (
            f"Nothing is saved since it began: ckpt_path={str(run.ckpt_path)!r} begins there again."
        )
    return "Nothing of it is saved."


def _what_is_finite(run: Run, since: int) -> str:
    """Rank 0. The checkpoint to go on from where the loss isn't finite since this step. Files are
    read for it.
    """
    if not run.strategy.is_global_zero or not (run.saves or run.ckpt_path):
        return "Nothing of it is saved."
    from core.checkpoint import has_finite_weights

    with phase("checkpoint"):
        for path, step in reversed(run.saves.items()):
            if step < since and has_finite_weights(path):
                return (
                    f"The checkpoint of step {step} has finite weights: ckpt_path={path!r} goes "
                    "on from it."
                )
        if run.ckpt_path is not None and has_finite_weights(run.ckpt_path):
            return (
                f"It began with finite weights: ckpt_path={str(run.ckpt_path)!r} begins there "
                "again."
            )
    return "No checkpoint from before is known to have finite weights."


def _has_bar(run: Run) -> bool:
    """False where a user wants no output, by `enable_progress_bar=False`."""
    return any(callback.found_as == "progress_bar_callback" for callback in run.callbacks)
