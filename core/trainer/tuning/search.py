"""A run of `fit` apart from the Trainer that asks for it: on copies, without loggers, with one callback."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.checkpoint import collect_random_state, restore_random_state
from core.contract import Capability, ConfigurationError, UnsupportedError
from core.trainer.logging.logged_values import LoggedValues
from core.trainer.loops.loss_watch import LossWatch
from core.trainer.loops.progress import Progress
from core.trainer.settings.barebones import NoMetrics
from core.trainer.signals.interruption import SignalGuard
from core.trainer.state.finished_fit import OWN_OPTIMIZERS
from core.trainer.tuning.copies import copy_loaders, copy_owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from core.trainer.callbacks.callback import Callback
    from core.trainer.data.datamodule import DataModule
    from core.trainer.data.sources import Source
    from core.trainer.loops.fit_call import FitCall
    from core.trainer.trainer import Trainer

_OWN_STEPS = OWN_OPTIMIZERS | Capability.OWNS_STEP | Capability.OWNS_ACCUMULATION | Capability.OWNS_SCHEDULER


class _NoLossWatch(LossWatch):
    """Says nothing: a loss that explodes is what a search looks for."""

    def _tell(self, key: str, what: str) -> None:
        pass


class _NoModuleCallbacks:
    """Leaves the callbacks of a module out."""

    def join(self, callbacks: list[Callback], module: Any) -> list[Callback]:
        """The given callbacks."""
        return callbacks


def check_searchable(who: str, trainer: Trainer, module: Any) -> None:
    """Refuse what can't be searched for.

    Raises:
        ConfigurationError: the module steps its optimizers itself, so that they may be several.
        UnsupportedError: the strategy's engine or shards can't be taken apart from a run.
    """
    if not getattr(module, "automatic_optimization", True):
        raise ConfigurationError(
            f"{who} needs automatic optimization with one optimizer, and {type(module).__name__} has "
            "automatic_optimization=False. Try values in a loop with Trainer(max_steps=100)."
        )
    if found := trainer.strategy.capabilities & _OWN_STEPS:
        raise UnsupportedError(
            f"{who} needs steps that core makes and parameters that are whole on each rank, and "
            f"{type(trainer.strategy).__name__} has {' and '.join(one.name or '' for one in found)}. Search with one "
            "device or with 'ddp', or try values in a loop with Trainer(max_steps=100).",
            capability=found,
        )


def run_apart(trainer: Trainer, call: FitCall, callback: Callback, *, max_steps: int) -> None:
    """Run `fit` on copies for so many optimizer steps. What the callback has found is in the callback itself.

    The Trainer, its loggers and callbacks, the module, the positions of loaders and the random state stay as they are.

    Raises:
        ConfigurationError: something can't be copied.
    """
    with _random_state_kept(trainer):
        search = _copy_of(trainer, callback, max_steps)
        module = copy_owner(search.fabric.uncompiled(call.module))
        datamodule = copy_owner(call.datamodule) if call.datamodule is not None else None
        search.described_module = module  # its hyperparameters are for the loggers of the run itself
        search._launch("fit", module, [_copied_source(call, module, datamodule)], datamodule, None)


def _copy_of(trainer: Trainer, callback: Callback, max_steps: int) -> Trainer:
    search = copy.copy(trainer)
    search.fabric = copy.copy(trainer.fabric)
    search.fabric.loggers = search.loggers = []
    search.options = replace(
        trainer.options,
        max_epochs=None,
        min_epochs=0,
        max_steps=max_steps,
        min_steps=0,
        max_time=None,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        terminate_on_nan=False,
    )
    search.callbacks, search._module_callbacks = [callback], _NoModuleCallbacks()  # type: ignore[assignment]
    search.profiler, search.progress = None, Progress()
    search.logged = LoggedValues(NoMetrics, search.progress)
    search.logged.losses = _NoLossWatch(search.progress)
    search.metrics, search.signals = search.logged.train, SignalGuard(search.progress)
    search.stops, search.pending_saves, search.finished_fit = None, [], None
    search.restored_random_state = search.random_state_at_opening = None
    search.running_step = search._wrapped_optimizers = None
    search._should_stop = False
    return search


def _copied_source(call: FitCall, module: nn.Module, datamodule: DataModule | None) -> Source:
    source = call.train
    if source.owner is None:
        return source._replace(given=copy_loaders(source.given, source.role.argument))
    return source._replace(owner=datamodule if source.owner is call.datamodule else module)


@contextmanager
def _random_state_kept(trainer: Trainer) -> Iterator[None]:
    strategy = trainer.strategy
    if not strategy.launcher.calls_in_place:  # the ranks are other processes, and a device must not be touched here
        yield
        return
    place = strategy.accelerator, strategy.root_device
    state = collect_random_state(*place)
    try:
        yield
    finally:
        restore_random_state(state, *place)
