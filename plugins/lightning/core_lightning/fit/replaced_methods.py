"""Methods that a module and the callbacks of a Trainer have for a stage, and that are others under
Lightning.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from core import Callback, ModuleError, Trainer, rank_zero_warn
from core.contract import empty_hook
from core_lightning.utilities.lists import as_list

_LOGS = ("log", "log_dict")
_OF_CALLBACKS = ("on_exception", "on_sanity_check_start", "on_sanity_check_end")
_MAKES = "configure_optimizers"
_KEYS = "optimizer", "lr_scheduler", "monitor"
_KEYS_OF_SCHEDULERS = (
    "scheduler",
    "name",
    "interval",
    "frequency",
    "reduce_on_plateau",
    "monitor",
    "strict",
)
_UNKNOWN_OF_SCHEDULER = (
    "Found unsupported keys in the lr scheduler dict: {}. HINT: remove them from the output of "
    "`configure_optimizers`."
)


class ReplacedMethods(Callback):
    """Replaces methods before the `setup` of the callbacks themselves, unless the object has its
    own.

    Callbacks get the module's `log` and `log_dict`. Methods of a module that have the name of a
    callback's hook aren't called. Its `configure_optimizers` may return one scheduler, or its dict,
    beside the list of optimizers, which are several only where it steps them itself: `core.Trainer`
    would step one after the other. Keys of dicts that mean nothing are warned of.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Replace them."""
        for name in _LOGS:
            for callback in trainer.callbacks:
                if hasattr(module, name) and not hasattr(callback, name):
                    self._replace(callback, name, getattr(module, name))
        for name in _OF_CALLBACKS:
            method = getattr(module, name, None)
            if method is not None:
                self._replace(module, name, empty_hook(partial(method)))
        method = getattr(module, _MAKES, None)
        if stage == "fit" and method is not None:
            is_automatic = getattr(module, "automatic_optimization", True)
            self._replace(module, _MAKES, partial(_listed, method, is_automatic))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        if name not in vars(owner):
            vars(owner)[name] = value
            self._replaced.append((owner, name, value))

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse several optimizers in automatic optimization."""
        if len(trainer.optimizers) > 1 and getattr(module, "automatic_optimization", True):
            raise ModuleError(
                f"{type(module).__name__}.configure_optimizers returned {len(trainer.optimizers)} "
                "optimizers, and automatic optimization steps one here. Set "
                "self.automatic_optimization = False and step them in training_step, through "
                "self.optimizers() and self.manual_backward(loss). Or use core's own Trainer."
            )

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Remove them, so that no callback keeps the module."""
        for owner, name, value in self._replaced:
            if vars(owner).get(name) is value:
                del vars(owner)[name]
        self._replaced = []


def _listed(method: Any, is_automatic: bool) -> Any:
    # in manual optimization Lightning refuses theirs
    known = partial(_known, of_schedulers=is_automatic)
    made = method()
    if not isinstance(made, list | tuple):
        return known(made)
    first = made[0] if len(made) == 2 else None
    if isinstance(first, list) and all(isinstance(each, Optimizer) for each in first):
        return first, [known({"lr_scheduler": each})["lr_scheduler"] for each in as_list(made[1])]
    return [known(each) for each in made]


def _known(made: Any, *, of_schedulers: bool) -> Any:
    """The keys of an optimizer's dict that mean something, and of its scheduler's."""
    if not isinstance(made, dict):
        return made
    found = _warned(made, _KEYS, "Found unsupported keys in the optimizer configuration: {}")
    scheduler = found.get("lr_scheduler")
    if of_schedulers and isinstance(scheduler, dict):
        found["lr_scheduler"] = _warned(scheduler, _KEYS_OF_SCHEDULERS, _UNKNOWN_OF_SCHEDULER)
    return found


def _warned(made: dict[str, Any], known: Collection[str], said: str) -> dict[str, Any]:
    unknown = ", ".join(repr(key) for key in made if key not in known)
    if unknown:
        rank_zero_warn(said.format(f"{{{unknown}}}"), category=RuntimeWarning)
    return {key: value for key, value in made.items() if key in known}
