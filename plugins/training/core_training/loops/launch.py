"""The way of a stage to its ranks, and of its result back to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_training.checks.stage_checks import check_stage
from core_training.hooks.events import overrides
from core_training.loops.fit_call import FitCall
from core_training.module.module import Module
from core_training.signals.interruption import workers_interruption
from core_training.views.trainer_views import TrainerViews

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_training.run import Run
    from core_training.stage_data.sources import Source


def launch(run: Run, sources: Sequence[Source]) -> Any:
    """Main process. Check the stage, run it on all ranks, and bring back what has changed.

    Args:
        run: that of its Trainer.
        sources: of its loaders.

    Returns:
        What the stage returns to the user.
    """
    run.logged.begin_stage()
    check_stage(run, sources)
    if run.trains and run.ckpt_path is None and not run.fast_dev_run:
        # callbacks search for settings; a run that resumes has them already
        for callback in run.callbacks:
            if overrides(callback, "before_fit"):
                callback.before_fit(run.trainer, FitCall(run.module, sources, run.datamodule))
    launcher = run.strategy.launcher
    run.status = "running"
    try:
        with workers_interruption(launcher.calls_in_place):
            outcome = launcher.launch(
                _run_in_worker, run=run, crosses_processes=not launcher.calls_in_place
            )
    except BaseException:
        run.status = "interrupted"
        raise
    finally:
        for callback in run.callbacks:
            callback.has_served |= run.trains
    run.status = "finished"
    if launcher.calls_in_place:
        return outcome
    if isinstance(run.module, Module) and isinstance(run.trainer, TrainerViews):
        run.module.trainer = run.trainer  # configure_model may ask it
    outcome.restore(run)
    return outcome.result


def _run_in_worker(run: Run, crosses_processes: bool) -> object:
    # who is refused by a check waits for none of it
    from core_training.loops import stage_lifecycle

    return stage_lifecycle.run_stage(run, crosses_processes)
