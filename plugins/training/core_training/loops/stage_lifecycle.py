"""A run in the worker, from the process group's beginning to its end; and what each stage does in
between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import HangError
from core.watch import explain, phase
from core_training.checks.monitors import warn_of_misspelt_monitors
from core_training.hooks.callback import GoBack
from core_training.hooks.events import Events, overrides
from core_training.logging import rank_loggers
from core_training.loops import run_facts, set_up
from core_training.loops.evaluate import evaluate
from core_training.loops.fit import FitLoop
from core_training.loops.predict import predict
from core_training.loops.profiling import profiled_stage
from core_training.loops.run_messages import (
    early_end,
    print_beginning,
    print_early_end,
    write_interruption,
    write_useless_end,
)
from core_training.module.module import Module
from core_training.settings.torch_modes import torch_modes
from core_training.signals.interruption import SignalGuard
from core_training.state import requeue
from core_training.state.checkpoint_path import find_checkpoint
from core_training.state.finished_fit import finished_fit_of
from core_training.state.finished_run import print_if_ended
from core_training.state.return_to_cpu import return_to_cpu
from core_training.views.trainer_views import TrainerViews

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract import Strategy
    from core_training.run import Run


def run_stage(run: Run, crosses_processes: bool) -> Any:
    """All ranks, in the worker. Run `run.stage` from the process group's beginning to its end.

    Args:
        run: with module, data and stage as the user's call has set them.
        crosses_processes: pack what has changed into an `WorkerResult`, for the caller in another
            process.
    """
    run.signals = SignalGuard(run.progress, requeue.warning_signals(run))
    with run.signals:
        outcome = _run(run, crosses_processes)
        if crosses_processes:
            return outcome.after_teardown(run.module)
        return outcome


def _run(run: Run, crosses_processes: bool) -> Any:
    strategy, module = run.strategy, run.module
    run.fabric.join()
    run.is_running = True
    _attach(run)
    # From here on, an exception reaches the hooks, and the stage is torn down.
    listeners = [*run.loop_policy.observers, *run.callbacks]
    run.events = Events(run.trainer, module, listeners, run.datamodule, run.profiler)
    try:
        run.stage_loggers = rank_loggers.loggers_of_rank(run.loggers, strategy)
        if run.fast_dev_run:
            _announce_quick_run(run)
        with torch_modes(run.options), profiled_stage(run):
            prepare_data(strategy, (run.datamodule, module))
            run.fabric.draw_alike()  # here, since who prepares data may draw
            run.events.emit("setup", run.stage)
            run.ckpt_path = find_checkpoint(run, run.ckpt_path)
            run.profiled("setup_strategy", _set_up)(run)
            result = _run_stage(run)
        for logger in run.stage_loggers:
            logger.finalize("success")
        if crosses_processes:
            from core_training.state.worker_result import WorkerResult

            return WorkerResult.of(run, result)
        return result
    except BaseException as raised:
        _return_to_step(run)
        error = explain(run.signals.explain(_explain_torch(run, raised)))
        try:
            requeue.requeue_after(run, error)
            on_exception = getattr(strategy, "on_exception", None)
            if on_exception is not None:
                on_exception(error)
            run.events.emit("on_exception", error)
            write_interruption(run)
            run_facts.log_error(run, error)
        finally:
            rank_loggers.finalize_after(run.stage_loggers, error)
        if error is raised:
            raise
        if isinstance(error, HangError):
            raise error from None
        raise error from raised
    finally:
        _end(run)


def _explain_torch(run: Run, error: BaseException) -> BaseException:
    if not isinstance(error, RuntimeError):
        return error
    from core_training.loops.torch_errors import explain_torch  # most runs have none

    return explain_torch(error, run.module, trains=run.trains)


def _attach(run: Run) -> None:
    """Give the Trainer to those who have it as an attribute; a progress bar shows something on rank
    0 only.
    """
    assert isinstance(run.trainer, TrainerViews)
    if isinstance(run.module, Module):
        run.module.trainer = run.trainer
    if run.datamodule is not None:
        run.datamodule.trainer = run.trainer
    for callback in run.callbacks:
        if callback.found_as == "progress_bar_callback":
            callback.trainer = run.trainer  # type: ignore[attr-defined]
            if not run.strategy.is_global_zero:
                callback.disable()  # type: ignore[attr-defined]


def _announce_quick_run(run: Run) -> None:
    batches = "1 batch" if run.fast_dev_run == 1 else f"{run.fast_dev_run} batches"
    run.fabric.print(
        f"fast_dev_run: {batches} of each stage; loggers, checkpoints, early stopping and monitors "
        "are off, and other limits don't count."
    )


def _set_up(run: Run) -> None:
    """Call `strategy.setup`. An override may leave out `super().setup(trainer)`, which is then done
    here.
    """
    strategy = run.strategy
    if run.trains and run.options.global_batch_size is not None:
        # The window follows from the loader, and engines want to know it when they are set up.
        run.loaders.setup(strategy)
        run.set_window()
    assert run.trainer is not None
    strategy.setup(run.trainer)
    # The classes that are next in line, as `super()` would ask them, as long as nothing is set up.
    overridden = [owner for owner in type(strategy).__mro__ if "setup" in vars(owner)][1:]
    for owner in overridden:
        if not run.session.handles:
            vars(owner)["setup"](strategy, run.trainer)


def _end(run: Run) -> None:
    try:
        with phase("teardown"):
            run.events.emit("teardown", run.stage)
    finally:
        run.end()
        run.fabric.teardown()
        return_to_cpu(run)


def _fit(run: Run) -> None:
    has_ended = print_if_ended(run)
    if not has_ended:
        print_beginning(run)
    if run.described_module is not run.module and not has_ended:
        run_facts.log_hyperparameters(run)
        run_facts.log_facts(run)
        run.described_module = run.module
    _sanity_check(run)
    loop = _train(run)
    with phase("end of fit"):
        run.events.emit("on_fit_end")
    if not has_ended:
        reason = early_end(run, loop.stops)
        print_early_end(run, reason)
        write_useless_end(run)
        run_facts.log_end(run, "finished", reason)
    run.finished_fit = finished_fit_of(run)
    requeue.forget(run)
    if has_ended:
        from core.loggers import RunFolderLogger

        for logger in run.stage_loggers:  # where nothing was written, its folder goes
            if isinstance(logger, RunFolderLogger):
                logger.remove_if_empty()


def _train(run: Run) -> FitLoop:
    """Train to the end. A callback may go back to a state of this run: all but the time is as in a
    run that resumes.
    """
    while True:
        loop = FitLoop(run)
        try:
            loop.run()
            return loop
        except GoBack as asked:
            (run.ckpt_path,) = asked.args
        loop.step.release()
        run.running_step, run.resume, run.pending_saves = None, None, []
        run.logged.begin_stage()
        run.progress.start_clock()
        set_up.restore(run, begins=False)


def _sanity_check(run: Run) -> None:
    most: int | float = run.options.num_sanity_val_steps
    if not run.loaders.validation or not most or run.ckpt_path is not None:
        return
    if most < 0:
        most = math.inf
    run.sanity_checking = True
    place = run.strategy.accelerator, run.strategy.root_device
    random_state = collect_random_state(*place)  # training must not depend on whether this was done
    run.events.emit("on_sanity_check_start")
    evaluate(run, "validation", [each.limited(most) for each in run.loaders.validation])
    run.events.emit("on_sanity_check_end")
    warn_of_misspelt_monitors(run, run.logged.evaluation["validation"].names())
    restore_random_state(random_state, *place)
    run.logged.forget_epoch_values()
    run.sanity_checking = False


def _run_stage(run: Run) -> object:
    if run.stage == "fit":
        _fit(run)
        return None
    print_beginning(run)
    if run.stage == "predict":
        return predict(run, run.loaders.predict, returns=run.returns_predictions)
    if run.stage == "test":
        return evaluate(run, "test", run.loaders.test)
    return evaluate(run, "validation", run.loaders.validation)


def _return_to_step(run: Run) -> None:
    """Uncount the batches of an unfinished window after an exception, since its gradients are
    lost.
    """
    unfinished = run.count_unfinished()
    run.progress.batch -= unfinished
    run.progress.total_batches -= unfinished
    run.progress.epoch_is_ending = False


def prepare_data(strategy: Strategy, owners: Sequence[Any]) -> None:
    """All ranks. Run the hook `prepare_data` in one process of each node, or in one; the others
    wait for it.
    """
    preparing = [
        owner for owner in owners if owner is not None and overrides(owner, "prepare_data")
    ]
    for owner in preparing:
        is_chosen = strategy.is_global_zero
        if getattr(owner, "prepare_data_per_node", True):
            is_chosen = strategy.local_rank == 0
        if is_chosen:
            owner.prepare_data()
    # The hooks are the same on all ranks, so all come to the barrier or none.
    if preparing:
        strategy.barrier("prepare_data")
