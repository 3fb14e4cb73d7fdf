"""A run of `fit` apart from the Trainer that asks for it: on copies, without loggers, with one
callback.
"""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from core.contract import Capability, ConfigurationError
from core_training.logging.metric_collector import NullMetricCollector
from core_training.logging.metric_values import MetricValues
from core_training.logging.non_finite_losses import NonFiniteLossCheck
from core_training.loops.launch import launch
from core_training.progress import Progress
from core_training.settings.callback_arguments import refuse_capabilities
from core_training.stage_data.collection import leaves_of
from core_training.stage_data.combined import CombinedLoader
from core_training.stage_data.loaders import Loaders
from core_training.stage_data.sources import Source
from core_training.state.finished_fit import OWN_OPTIMIZERS
from core_training.state.kept_random_state import random_state_kept

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from torch import nn

    from core.contract import Strategy
    from core_training.hooks.callback import Callback
    from core_training.loops.fit_call import FitCall
    from core_training.views.trainer_views import TrainerViews

_OWN_STEPS = (
    OWN_OPTIMIZERS | Capability.OWNS_STEP | Capability.OWNS_ACCUMULATION | Capability.OWNS_SCHEDULER
)


def check_copied_fit(who: str, strategy: Strategy, module: object) -> None:
    """Refuse what can't run on copies.

    Args:
        who: the class that asks for it.
        strategy: of the run.
        module: the user's own.

    Raises:
        ConfigurationError: the module steps its optimizers itself, so that they may be several.
        UnsupportedError: the strategy's engine or shards can't be taken apart from a run.
    """
    if not getattr(module, "automatic_optimization", True):
        raise ConfigurationError(
            f"{who} needs automatic optimization with one optimizer, and {type(module).__name__} "
            "has automatic_optimization=False. Try values in a loop with Trainer(max_steps=100)."
        )
    refuse_capabilities(
        who,
        strategy,
        _OWN_STEPS,
        reason="needs steps that core makes and parameters that are whole on each rank",
        cure="Search with one device or with 'ddp', or try values in a loop with "
        "Trainer(max_steps=100).",
    )


def fit_on_copies(
    trainer: TrainerViews, call: FitCall, callback: Callback, *, max_steps: int
) -> None:
    """Run `fit` on copies; see `Trainer.fit_on_copies`."""
    keeping: AbstractContextManager[None] = nullcontext()
    if trainer.strategy.launcher.calls_in_place:  # else a device must not be touched here
        keeping = random_state_kept(trainer.strategy)
    with keeping:
        module, datamodule, given = _copied(trainer.run.fabric.uncompiled(call.module), call)
        owner = call.train.owner
        if owner is call.datamodule:
            owner = datamodule
        elif owner is not None:
            owner = module
        source = Source(call.train.role, given, owner)
        options = replace(
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
        progress = Progress()
        logged = MetricValues(NullMetricCollector, progress)
        logged.losses = NonFiniteLossCheck(progress, warns=False)
        # A Trainer of the same class, which has this run and leaves that of the other one alone.
        copied = copy.copy(trainer)
        copied.run = replace(
            trainer.run,
            trainer=copied,
            options=options,
            loaders=Loaders(options, [source]),
            callbacks=[callback],
            loggers=[],
            profiler=None,
            progress=progress,
            logged=logged,
            stage="fit",
            module=module,
            datamodule=datamodule,
            ckpt_path=None,
            is_asked_to_stop=False,
            described_module=module,  # its hyperparameters are for the loggers of the run itself
        )
        launch(copied.run, [source])


def loaders_in(given: Any) -> list[Any]:
    """All loaders of a collection, of a CombinedLoader, or the one that it is."""
    leaves: Iterable[tuple[str, Any]] = leaves_of(given)
    if isinstance(given, CombinedLoader):
        leaves = given.leaves
    return [leaf for _, leaf in leaves]


def _copied(module: nn.Module, call: FitCall) -> Any:
    """Copies of module, data module and training loaders, each loader with a sampler and generators
    of its own, over the same data sets.

    Raises:
        ConfigurationError: loaders that can be read once only, or something that can't be copied.
    """
    leaves = loaders_in(call.train.given)
    for leaf in leaves:
        if hasattr(leaf, "__next__"):
            raise ConfigurationError(
                f"{call.train.role.argument} has {type(leaf).__name__}, an iterator that a search "
                "would use up. Pass what can be iterated over several times, such as a DataLoader."
            )
    shared = []
    owners = [vars(owner).values() for owner in (module, call.datamodule) if owner is not None]
    for value in itertools.chain(leaves, *owners):
        if isinstance(value, DataLoader):
            # and the running workers, if they are persistent
            shared += [value.dataset, getattr(value, "_iterator", None)]
        elif isinstance(value, Dataset):
            shared.append(value)
    # any other loader, such as a list, is its own data set
    shared += [leaf for leaf in leaves if not isinstance(leaf, DataLoader)]
    memo = {id(one): one for one in shared if one is not None}
    try:
        return copy.deepcopy((module, call.datamodule, call.train.given), memo)
    except Exception as error:
        raise ConfigurationError(
            f"{type(module).__name__}, its data module or its loaders can't be copied, and a "
            "search for settings works on a copy so as to leave nothing behind "
            f"({type(error).__name__}: {error}). Give what can't be copied a __deepcopy__, or its "
            "owner a __getstate__ that leaves it out."
        ) from error
