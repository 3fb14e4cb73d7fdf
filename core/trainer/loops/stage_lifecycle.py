"""One stage in the worker, from the process group's beginning to its end; and what each stage does in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import HangError
from core.trainer.callbacks.progress_bar import ProgressBar
from core.trainer.data.prepare import prepare_data
from core.trainer.hooks.events import Events
from core.trainer.logging import run_logs
from core.trainer.loops.evaluate import evaluate
from core.trainer.loops.fit import FitLoop
from core.trainer.loops.predict import predict
from core.trainer.loops.profiling import profiled_stage
from core.trainer.module.module import Module
from core.trainer.settings import quick_runs
from core.trainer.settings.torch_modes import torch_modes
from core.trainer.signals import requeue
from core.trainer.signals.interruption import SignalGuard
from core.trainer.signals.told_end import tell_end
from core.trainer.state.checkpoint_path import find_checkpoint
from core.trainer.state.finished_fit import FinishedFit
from core.watch import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Stage
    from core.trainer.trainer import Trainer


def run(trainer: Trainer, crosses_processes: bool) -> Any:
    """All ranks, in the worker. Run `trainer.stage` from the process group's beginning to its end.

    Args:
        trainer: with module, data and stage as the user's call has set them.
        crosses_processes: pack what has changed into an `Outcome`, for the caller in another process.
    """
    trainer.signals = SignalGuard(trainer.progress, requeue.warning_signals(trainer))
    with trainer.signals:
        outcome = _run(trainer, crosses_processes)
        return outcome.after_teardown(trainer.module) if crosses_processes else outcome


def _run(trainer: Trainer, crosses_processes: bool) -> Any:
    strategy, module = trainer.strategy, trainer.module
    trainer.fabric.join()
    trainer.is_running = True
    if isinstance(module, Module):
        module.trainer = trainer
    if trainer.datamodule is not None:
        trainer.datamodule.trainer = trainer
    for callback in trainer.callbacks:
        if isinstance(callback, ProgressBar):
            callback.trainer = trainer
            if not trainer.is_global_zero:
                callback.disable()
    # From here on, an exception reaches the hooks, and the stage is torn down.
    trainer.events = Events(trainer, module, trainer.callbacks, trainer.datamodule)
    try:
        trainer.loggers = run_logs.loggers_of_rank(trainer.fabric.loggers, strategy)
        if trainer.fast_dev_run:
            quick_runs.announce(trainer, trainer.fast_dev_run)
        with torch_modes(trainer.options), profiled_stage(trainer):
            prepare_data(strategy, (trainer.datamodule, module))
            trainer.events.emit("setup", trainer.stage)
            trainer.ckpt_path = find_checkpoint(trainer, trainer.ckpt_path)
            trainer.profiled("setup_strategy", _set_up)(trainer)
            result = _BODIES[trainer.stage](trainer)
        run_logs.finalize(trainer.loggers)
        if crosses_processes:
            from core.trainer.state.outcome import Outcome

            return Outcome.of(trainer, result)
        return result
    except BaseException as raised:
        _return_to_step(trainer)
        error = explain(trainer.signals.explain(raised))
        try:
            requeue.requeue_after(trainer, error)
            if (hears := getattr(strategy, "on_exception", None)) is not None:
                hears(error)
            trainer.events.emit("on_exception", error)
            tell_end(trainer)
        finally:
            run_logs.finalize_after(trainer.loggers, error)
        if error is raised:
            raise
        raise error from (None if isinstance(error, HangError) else raised)
    finally:
        _end(trainer)


def _set_up(trainer: Trainer) -> None:
    """Let the strategy set everything up. An override may do its part only, and leave out `super().setup(trainer)`."""
    strategy = trainer.strategy
    if trainer.trains and trainer.options.global_batch_size is not None:
        # The window follows from the loader, and engines want to know it when they are set up.
        trainer.setup_dataloaders()
        trainer.take_window()
    strategy.setup(trainer)
    # The classes that are next in line, as `super()` would ask them, as long as nothing is set up.
    overridden = [owner for owner in type(strategy).__mro__ if "setup" in vars(owner)][1:]
    for owner in overridden:
        if not trainer.session.handles:
            vars(owner)["setup"](strategy, trainer)


def _end(trainer: Trainer) -> None:
    try:
        trainer.events.emit("teardown", trainer.stage)
    finally:
        trainer.forget_optimizers()
        if trainer.running_step is not None:
            # Loop and step hold each other: a wrapper would outlive its process group until garbage is collected.
            trainer.running_step.release()
        trainer.running_step, trainer.is_running = None, False
        trainer.fabric.teardown()


def _fit(trainer: Trainer) -> None:
    if trainer.described_module is not trainer.module:
        run_logs.log_hyperparameters(trainer)
        run_logs.log_facts(trainer)
        trainer.described_module = trainer.module
    _sanity_check(trainer)
    FitLoop(trainer).run()
    trainer.events.emit("on_fit_end")
    trainer.finished_fit = FinishedFit.of(trainer)
    requeue.forget(trainer)


def _sanity_check(trainer: Trainer) -> None:
    if not trainer.loaders.validation or not trainer.options.num_sanity_val_steps or trainer.ckpt_path is not None:
        return
    trainer.sanity_checking = True
    place = trainer.strategy.accelerator, trainer.strategy.root_device
    random_state = collect_random_state(*place)  # training must not depend on whether this was done
    trainer.events.emit("on_sanity_check_start")
    with trainer.loaders.limited_validation(trainer.options.num_sanity_val_steps) as loaders:
        evaluate(trainer, "validation", loaders)
    trainer.events.emit("on_sanity_check_end")
    restore_random_state(random_state, *place)
    trainer.logged.forget_epoch_values()
    trainer.sanity_checking = False


def _validate(trainer: Trainer) -> list[dict[str, float]]:
    return evaluate(trainer, "validation", trainer.loaders.validation)


def _test(trainer: Trainer) -> list[dict[str, float]]:
    return evaluate(trainer, "test", trainer.loaders.test)


def _predict(trainer: Trainer) -> list[Any] | None:
    return predict(trainer, trainer.loaders.predict, returns=trainer.returns_predictions)


def _return_to_step(trainer: Trainer) -> None:
    """Uncount the batches of an unfinished window after an exception, since its gradients are lost."""
    unfinished = trainer.count_unfinished()
    trainer.progress.batch -= unfinished
    trainer.progress.total_batches -= unfinished
    trainer.progress.epoch_is_ending = False


_BODIES: dict[Stage | None, Callable[[Trainer], Any]] = {
    "fit": _fit,
    "validate": _validate,
    "test": _test,
    "predict": _predict,
}
