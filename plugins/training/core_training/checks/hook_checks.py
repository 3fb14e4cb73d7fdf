"""Hooks that would never be called, or can't be: said before work starts."""

from __future__ import annotations

import re
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING

from core.contract import near_names
from core_training.hooks.argument_counts import count_accepted, hook_arguments
from core_training.hooks.callback import Callback
from core_training.hooks.event_hooks import EventHooks
from core_training.hooks.events import overrides
from core_training.module.module import Module, has_method
from core_training.settings.warn_at import warn_at
from core_training.stage_data.datamodule import DataModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

_EVENTS = tuple(name for name, value in vars(EventHooks).items() if isinstance(value, FunctionType))
_METHODS: dict[str, tuple[str, ...]] = {
    "training_step": ("batch", "batch_idx"),
    **dict.fromkeys(
        ("validation_step", "test_step", "predict_step"), ("batch", "batch_idx", "dataloader_idx")
    ),
    "configure_model": (),
    "configure_optimizers": (),
    "configure_callbacks": (),
    "backward": ("loss",),
    "optimizer_step": ("epoch", "batch_idx", "optimizer", "optimizer_closure"),
    "optimizer_zero_grad": ("epoch", "batch_idx", "optimizer"),
    "configure_gradient_clipping": ("optimizer", "gradient_clip_val", "gradient_clip_algorithm"),
    "lr_scheduler_step": ("scheduler", "metric"),
}
_HOOK_LIKE = re.compile(
    r"^on_|^configure|_step|step_|optimizer|_dataloader|_epoch_|_batch_|prepare_data"
)
# Hooks of PyTorch Lightning's earlier releases, with the one that is called at that moment.
_FORMER = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
    "test_epoch_end": "on_test_epoch_end",
    "training_step_end": "on_train_batch_end",
    "validation_step_end": "on_validation_batch_end",
    "test_step_end": "on_test_batch_end",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_validation_model_eval": "on_validation_start",
    "on_validation_model_train": "on_validation_end",
    "on_test_model_eval": "on_test_start",
    "on_test_model_train": "on_test_end",
    "on_predict_model_eval": "on_predict_start",
    "on_predict_model_train": "on_predict_end",
    "on_keyboard_interrupt": "on_exception",
    "configure_sharded_model": "configure_model",
}


def check_hooks(
    module: nn.Module, callbacks: Sequence[Callback], datamodule: DataModule | None
) -> None:
    """Main process. Warn of names that look like a hook's, and refuse hooks that can't take their
    arguments.

    Raises:
        ModuleError: with the signature and the arguments.
    """
    listeners = [module, *callbacks]
    if datamodule is not None:
        listeners.append(datamodule)
    for listener in listeners:
        kind: type = type(listener)
        for name, meant in _near_misses(kind):
            if not overrides(listener, meant) or (
                listener is module and not has_method(module, meant)
            ):
                warn_at(
                    getattr(kind, name, None),
                    f"{kind.__name__}.{name} is not a hook, and is never called by the Trainer. "
                    f"Did you mean {meant!r}?",
                )
    for callback in callbacks:
        _check_events(callback, skip=0, least=2)
    _check_events(module, skip=2, least=0)
    _check_methods(module)


def _check_events(listener: object, *, skip: int, least: int) -> None:
    for name in _EVENTS:
        if overrides(listener, name):
            count_accepted(
                getattr(listener, name),
                hook_arguments(name)[skip:],
                least=least,
                owner=f"{type(listener).__name__}.{name}",
            )


def _check_methods(module: nn.Module) -> None:
    for name, names in _METHODS.items():
        own = getattr(type(module), name, None)
        if own is not getattr(Module, name) and overrides(module, name):
            # Steps may leave out arguments at their end; the other methods get all of theirs.
            least = len(names)
            if names[:1] == ("batch",):
                least = 1
            owner = f"{type(module).__name__}.{name}"
            count_accepted(getattr(module, name), names, least=least, owner=owner)


@cache
def _near_misses(kind: type) -> tuple[tuple[str, str], ...]:
    """(name, hook that was meant) of a class's own methods."""
    base: type = Module
    for other in (Callback, DataModule):
        if issubclass(kind, other):
            base = other
    hooks = {name for name in dir(base) if not name.startswith("_")}
    hooks.update(getattr(kind, "other_hooks", ()))  # those that a base of another package calls
    found = []
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] in ("core", "core_training", "torch", "builtins"):
            continue
        for name, value in vars(owner).items():
            if isinstance(value, FunctionType) and name not in hooks and _HOOK_LIKE.search(name):
                found += [(name, meant) for meant in _meant(name, hooks)]
    return tuple(found)


def _meant(name: str, hooks: set[str]) -> list[str]:
    for candidate in (_FORMER.get(name), name.replace("val_", "validation_")):
        if candidate in hooks:
            return [candidate]
    return near_names(name, hooks, count=1, cutoff=0.88)
