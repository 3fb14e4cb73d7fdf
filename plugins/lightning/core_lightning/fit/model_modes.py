"""Calls the hooks by which a module chooses the modes of its parts, in an evaluation and after."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from core import Callback, Trainer
from core_lightning.module.mode_hooks import MODE_HOOKS, ModeHooks


class ModelModes(Callback):
    """Calls `on_validation_model_eval` and its siblings, in the place of the evaluation mode of the
    whole module.

    core evaluates a module in evaluation mode, and then gives each part its mode of before. The
    hooks of a module that has its own get the parts as they were before, and what they make of them
    holds.
    """

    def __init__(self) -> None:
        self._before: dict[nn.Module, bool] = {}
        self._after: dict[nn.Module, bool] = {}

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Look for such hooks: without any, a step pays for nothing."""
        for name in ("on_train_batch_start", "on_train_batch_end"):
            vars(self).pop(name, None)
        self._note(module)
        if any(_own(module, name) for name in MODE_HOOKS):
            self.on_train_batch_start = lambda trainer, module, *_: self._restore()  # type: ignore[method-assign]
            self.on_train_batch_end = lambda trainer, module, *_: self._note(module)  # type: ignore[method-assign]

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Forget the module."""
        self._restore()
        self._before = {}

    def on_sanity_check_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Note the modes."""
        self._note(module)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """After a sanity check, and at an epoch's end after its validation run."""
        self._restore()

    on_train_epoch_end = on_train_start

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_validation_start` of the module."""
        hook = getattr(module, "on_validation_model_zero_grad", None)
        trains = trainer.stage == "fit" and not trainer.sanity_checking
        if hook is not None and trains and not trainer.count_unfinished():
            hook()
        self._evaluate(module, "on_validation_model_eval")

    def on_test_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_test_start` of the module."""
        self._evaluate(module, "on_test_model_eval")

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_predict_start` of the module."""
        self._evaluate(module, "on_predict_model_eval")

    def _evaluate(self, module: nn.Module, name: str) -> None:
        hook = _own(module, name)
        if hook is not None:
            _set(self._before)
            hook()

    def train(self, module: nn.Module, name: str) -> None:
        """Call a module's own `on_validation_model_train`, after all other hooks of a validation
        run.
        """
        hook = _own(module, name)
        if hook is not None:
            hook()
            self._after = _modes(module)

    def _note(self, module: nn.Module) -> None:
        self._before = _modes(module)

    def _restore(self) -> None:
        _set(self._after)
        self._after = {}


class ModesAfterwards(Callback):
    """Calls the hooks that follow all others of an evaluation."""

    runs_last = True

    def __init__(self, modes: ModelModes) -> None:
        self._modes = modes

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """After `on_validation_end` of all."""
        self._modes.train(module, "on_validation_model_train")

    def on_test_end(self, trainer: Trainer, module: nn.Module) -> None:
        """After `on_test_end` of all."""
        self._modes.train(module, "on_test_model_train")


def _own(module: nn.Module, name: str) -> Callable[[], None] | None:
    """The hook, if the module has one of its own."""
    hook = getattr(module, name, None)
    if getattr(hook, "__func__", hook) is getattr(ModeHooks, name, None):
        return None
    return hook


def _modes(module: nn.Module) -> dict[nn.Module, bool]:
    return {part: part.training for part in module.modules()}


def _set(modes: dict[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
