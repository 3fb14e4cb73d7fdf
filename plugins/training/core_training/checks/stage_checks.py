"""Checks of module and strategy: combinations that can't work are refused before any process
starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from core.contract import Capability, ConfigurationError, UnsupportedError, World
from core.data import check_global_batch
from core_training.checks.hook_checks import check_hooks
from core_training.hooks.events import overrides
from core_training.module.module import has_method
from core_training.settings.callback_arguments import refuse_capabilities
from core_training.settings.options import MAX_EPOCHS
from core_training.settings.warn_at import warn_caller
from core_training.stage_data.sources import VALIDATION
from core_training.state.finished_run import limit_reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from core.contract import Strategy
    from core_training.run import Run
    from core_training.settings.options import TrainerOptions
    from core_training.stage_data.sources import Source

_OF_THE_STEP = ("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
_HOOKS_OF_THE_STEP = (
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)
_OWNED = {
    Capability.OWNS_STEP: _OF_THE_STEP,
    Capability.COMPILED_STEP: _OF_THE_STEP,
    Capability.OWNS_CLIPPING: ("configure_gradient_clipping",),
    Capability.OWNS_SCHEDULER: ("lr_scheduler_step",),
}


def check_arguments(options: TrainerOptions, strategy: Strategy) -> None:
    """Main process, when a Trainer is made.

    Raises:
        UnsupportedError: the strategy can't clip by value.
        ConfigurationError: batch norms can't be synchronized on this device.
    """
    clipping = options.clipping
    clips_by_value = clipping is not None and clipping.algorithm == "value"
    if clips_by_value and Capability.CLIP_BY_VALUE not in strategy.capabilities:
        raise UnsupportedError(
            f"gradient_clip_algorithm='value': {type(strategy).__name__} can't clip gradients by "
            "value. Use 'norm'.",
            capability=Capability.CLIP_BY_VALUE,
        )
    if options.global_batch_size is not None:
        refuse_capabilities(
            f"global_batch_size={options.global_batch_size}",
            strategy,
            Capability.ELASTIC | Capability.COMPILED_STEP,
            reason="needs a fixed number of processes, and steps of any size",
            cure="Leave it out, and say batch_size and accumulate_grad_batches, or what the "
            "strategy has in their place.",
        )
        # Where ranks have shards in common, their number isn't known yet.
        if type(strategy).data_parallel_size is World.data_parallel_size:
            num_shards = strategy.num_processes_per_node * strategy.num_nodes
            check_global_batch(options.global_batch_size, num_shards)
    is_on_cpu = not strategy.parallel_devices or strategy.root_device.type == "cpu"
    if options.sync_batchnorm and is_on_cpu and Capability.COLLECTIVES in strategy.capabilities:
        raise ConfigurationError(
            f"sync_batchnorm=True with {type(strategy).__name__} on the CPU: "
            "torch.nn.SyncBatchNorm computes on GPUs only. Leave it out here, or use layers that "
            "don't depend on the batch, such as GroupNorm."
        )


def check_stage(run: Run, sources: Sequence[Source]) -> None:
    """Main process, when a stage begins.

    Raises:
        ModuleError: a hook that can't be called.
        UnsupportedError: the module does by itself what the strategy can't leave to it.
        ConfigurationError: arguments that contradict the module.
    """
    module = run.module
    strategy = run.strategy
    check_hooks(module, run.callbacks, run.datamodule)
    if run.stage != "fit":
        return
    if not strategy.precision_plugin.trains:
        raise ConfigurationError(
            f"precision={strategy.precision_plugin.name!r} evaluates and predicts, and can't "
            "train. Call validate, test or predict, or fit with another precision."
        )
    for callback in run.callbacks:
        callback.check_fit(run.trainer, module)
    if not getattr(module, "automatic_optimization", True):
        _check_manual(module, run.options, strategy)
    _check_owned(module, strategy)
    _warn_of_parts(run)
    if Capability.COMPILED_STEP in strategy.capabilities:
        _check_compiled(run)
    _warn_of_idleness(run)
    is_validated = any(source.role is VALIDATION for source in sources)
    is_wanted = has_method(module, "validation_step") and run.options.limit_val_batches != 0
    if is_wanted and not is_validated:
        warn_caller(
            f"{type(module).__name__} has a validation_step(), and no validation loader was given: "
            "nothing is validated. Pass val_dataloaders=..., define val_dataloader(), or say "
            "limit_val_batches=0.",
        )


def _warn_of_parts(run: Run) -> None:
    if Capability.OWNS_GRADIENTS not in run.strategy.capabilities:
        return
    for listener in (*run.callbacks, run.module):
        if overrides(listener, "on_before_optimizer_step"):
            warn_caller(
                f"{type(listener).__name__} has the hook on_before_optimizer_step, and under "
                f"{type(run.strategy).__name__} gradients aren't whole there: a rank has a part of "
                "them, its own, or None. Norms differ between ranks, and changes may be lost. Clip "
                "by Trainer(gradient_clip_val=...), or use a strategy such as ddp or fsdp.",
            )


def _warn_of_idleness(run: Run) -> None:
    """A trainer counts on from one `fit` to the next, and may have nothing left to do."""
    limit = limit_reached(run)
    progress = run.progress
    is_again = progress.total_batches and run.ckpt_path is None
    if limit and is_again and run.strategy.is_global_zero:
        warn_caller(
            f"fit trains nothing: this Trainer has done {progress.epoch} epochs and "
            f"{progress.global_step} steps before, and was told {limit}. Make a new Trainer; to go "
            "on with what was trained, give it a larger limit and fit(..., ckpt_path=...).",
        )


def _check_manual(module: nn.Module, options: TrainerOptions, strategy: Strategy) -> None:
    name = type(module).__name__
    if Capability.MANUAL_OPTIMIZATION not in strategy.capabilities:
        raise UnsupportedError(
            f"{name} has automatic_optimization=False, and {type(strategy).__name__} can't leave "
            "backward and the optimizers to a module. Return the loss from training_step, or use "
            "another strategy.",
            capability=Capability.MANUAL_OPTIMIZATION,
        )
    because = f"and {name} has automatic_optimization=False: it steps its optimizers itself"
    if options.accumulate_grad_batches > 1:
        raise ConfigurationError(
            f"accumulate_grad_batches={options.accumulate_grad_batches}, {because}. Accumulate in "
            "training_step, by stepping in every n-th batch."
        )
    if options.global_batch_size is not None:
        raise ConfigurationError(
            f"global_batch_size={options.global_batch_size}, {because}, and only it knows how many "
            "samples make a step. Leave it out."
        )
    if options.clipping is not None:
        raise ConfigurationError(
            f"gradient_clip_val={options.clipping.value}, {because}. Call "
            "self.clip_gradients(optimizer, gradient_clip_val=...) before the step."
        )


def _check_compiled(run: Run) -> None:
    """Refuse what would have to run within a compiled step, or between the updates of one batch."""
    strategy = run.strategy
    options = run.options
    name = type(strategy).__name__
    for listener in (*run.callbacks, run.module):
        for hook in _HOOKS_OF_THE_STEP:
            if overrides(listener, hook):
                raise UnsupportedError(
                    f"{type(listener).__name__} has the hook {hook}, and {name} runs forward, "
                    "backward and update as one compiled program, in which no hook can run. Leave "
                    "the hook out, or use another strategy.",
                    capability=Capability.COMPILED_STEP,
                )
    if options.clipping is not None and Capability.OWNS_CLIPPING not in strategy.capabilities:
        raise UnsupportedError(
            f"gradient_clip_val={options.clipping.value}: {name} runs forward, backward and update "
            "as one compiled program, which doesn't clip gradients. Leave it out, or use another "
            "strategy.",
            capability=Capability.COMPILED_STEP,
        )
    if run.ckpt_path is None:  # else the step at which training begins isn't known yet
        check_max_steps(run)


def check_max_steps(run: Run) -> None:
    """All ranks. Refuse a limit that lies between the updates of one batch.

    Raises:
        ConfigurationError: with the limit that fits.
    """
    limit = run.options.max_steps
    updates = run.strategy.updates_per_batch
    rest = (limit - run.progress.global_step) % updates
    if limit > run.progress.global_step and rest:
        raise ConfigurationError(
            f"max_steps={limit}, and {type(run.strategy).__name__} makes {updates} updates in each "
            f"batch, from step {run.progress.global_step} on, so that training can't end there. "
            f"Use max_steps={limit - rest + updates}."
        )


def check_iterators(run: Run) -> None:
    """All ranks, before the first batch. Refuse loaders of which the first of several epochs alone
    gets something.

    An iterator without end may be meant where anything but `max_epochs` ends an epoch or the run.

    Raises:
        ConfigurationError: one is a Python iterator.
    """
    options = run.options
    loaders = run.loaders
    limits = options.limit_train_batches, options.limit_val_batches, options.max_time
    if limits != (None, None, None) or options.overfit_batches or options.max_steps >= 0:
        return
    if options.max_epochs in (None, MAX_EPOCHS):  # the user has named no end
        return
    num_left = (options.max_epochs - run.progress.epoch) // (options.check_val_every_n_epoch or 1)
    for loader in (loaders.train, *(each.loader for each in loaders.validation)):
        kind = type(loader)
        is_pythons = kind.__module__ in ("builtins", "itertools") and isinstance(loader, Iterator)
        if is_pythons and num_left > 1 and not options.reload_dataloaders_every_n_epochs:
            raise ConfigurationError(
                f"A loader is a {kind.__name__}, which can be iterated over once, and "
                f"max_epochs={options.max_epochs} asks for more. Pass what can be iterated over in "
                "every epoch, such as a DataLoader or a list; if it has no end, say "
                "limit_train_batches=... or limit_val_batches=..."
            )


def _check_owned(module: nn.Module, strategy: Strategy) -> None:
    for capability, names in _OWNED.items():
        for name in names:
            if capability in strategy.capabilities and overrides(module, name):
                raise UnsupportedError(
                    f"{type(module).__name__} overrides {name}, and {type(strategy).__name__} does "
                    "that inside its own step, where a module has no part. Leave the override out, "
                    "or use another strategy.",
                    capability=capability,
                )
