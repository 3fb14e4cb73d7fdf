"""Checkpoints of a stage: between two optimizer steps while it runs, and after `fit` has
returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core.watch import heartbeat, phase
from core_training.settings.warn_at import warn_caller
from core_training.state import snapshot
from core_training.state.finished_fit import still_trains

if TYPE_CHECKING:
    from core.contract import PathLike
    from core_training.run import FinishedFit, Run


def save_at_step(run: Run, path: PathLike, *, weights_only: bool) -> None:
    """All ranks. Write a checkpoint now, or once the accumulation window has ended."""
    if run.count_unfinished() or run.progress.epoch_is_ending:
        line = ""
        if run.session.has_peers:
            line = heartbeat.callers_line()
        run.pending_saves.append((path, weights_only, line))
    else:
        _write(run, path, weights_only)


def write_pending(run: Run) -> None:
    """All ranks. Write what was asked for within the accumulation window that has just ended."""
    for path, weights_only, line in run.pending_saves:
        _write(run, path, weights_only, line)
    run.pending_saves = []


def _write(run: Run, path: PathLike, weights_only: bool, line: str = "") -> None:
    with phase("checkpoint", line=line), run.profile("save_checkpoint"):
        snapshot.save(run, path, weights_only=weights_only)
    if not weights_only:
        run.saves.pop(str(path), None)
        run.saves[str(path)] = run.progress.global_step


def save_after_fit(run: Run, path: PathLike, *, weights_only: bool) -> None:
    """All ranks, while no stage runs. Set the module up again, and write what is left when a stage
    is over.

    Raises:
        ConfigurationError: no stage has run yet, so there is no module.
    """
    if run.stage is None:
        raise ConfigurationError(
            "trainer.save_checkpoint: this Trainer has no module yet. Call it after fit, or in a "
            "hook; a module that was never trained is saved by torch.save(module.state_dict(), "
            "path)."
        )
    finished = run.finished_fit
    if finished is not None and (weights_only or not still_trains(finished, run.module)):
        finished = None
    if finished is None and not weights_only and run.progress.global_step:
        warn_caller(
            f"trainer.save_checkpoint({str(path)!r}): the optimizers are gone, so training can't "
            "go on from this checkpoint; it can be evaluated. To go on, let ModelCheckpoint save, "
            "or save in a hook such as on_train_end. If that is meant, say weights_only=True.",
        )
    launcher = run.strategy.launcher
    if launcher.calls_in_place:
        launcher.launch(_save_in_group, run, path, weights_only=weights_only, finished=finished)
    else:  # the ranks are gone, and this process has got all that they had
        snapshot.save(run, path, weights_only=weights_only)


def _save_in_group(
    run: Run, path: PathLike, *, weights_only: bool, finished: FinishedFit | None
) -> None:
    run.fabric.join()
    try:
        run.session.add_module(run.module)  # as for evaluation: the strategy says what its state is
        if finished is not None:
            # As the strategy has set them up: a second time, one might scale learning rates or wrap
            # them again.
            run.strategy.optimizers = finished.optimizers
            run.strategy.lr_schedulers = finished.lr_schedulers
        snapshot.save(run, path, weights_only=weights_only, finished=finished)
    finally:
        run.fabric.teardown()
