"""Draws from the random state as Lightning's Trainer does before the first epoch."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from core import Callback
from core.callbacks import ModelSummary
from core.data import to_device

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer

_TIMES = 3
"""So often Lightning's summary asks a module for its example."""


class SameDraws(Callback):
    """Asks what Lightning asks, as often, so that what draws when it is asked leaves the same random state.

    The summary asks for `example_input_array`, which may be a property, and gives it to `forward`, which may draw.
    Loaders of other classes than torch's are asked for an iterator once, to check them: one that draws its order then
    would shuffle differently otherwise. Training loaders that are made anew for an epoch are asked before it begins.
    """

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Begin a stage, which checks its loaders anew."""
        self._has_checked = False

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask for the example: core's own summary leaves the random state as it was."""
        if any(isinstance(callback, ModelSummary) and callback.max_depth for callback in trainer.callbacks):
            examples = [getattr(module, "example_input_array", None) for _ in range(_TIMES)]
            if examples[-1] is not None:
                _forward(trainer, module, examples[-1])

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the training loaders, and those for validation if no sanity check has."""
        _ask(trainer.train_dataloader)
        self._ask_for_validation(trainer)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask new training loaders, whose iterator draws a seed; those of the first epoch are asked once in all."""
        every, epoch = trainer.options.reload_dataloaders_every_n_epochs, trainer.current_epoch
        if every and epoch and epoch % every == 0:
            _ask(trainer.train_dataloader)
            for loader in _leaves(trainer.train_dataloader):
                iter(loader)

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders, the first time."""
        self._ask_for_validation(trainer)

    def on_test_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders."""
        _ask(trainer.test_dataloaders)

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders."""
        _ask(trainer.predict_dataloaders)

    def _ask_for_validation(self, trainer: Trainer) -> None:
        if not self._has_checked:
            _ask(trainer.val_dataloaders)
        self._has_checked = True


def _forward(trainer: Trainer, module: nn.Module, example: Any) -> None:
    """Call `forward` on an example in evaluation mode. Its errors are the summary's to report."""
    modes = {part: part.training for part in module.modules()}
    moved: Any = to_device(example, trainer.strategy.root_device)
    module.eval()
    try:
        with torch.no_grad(), trainer.strategy.forward_context() or nullcontext(), suppress(Exception):
            if isinstance(moved, dict):
                module(**moved)
            else:
                module(*moved) if isinstance(moved, list | tuple) else module(moved)
    finally:
        for part, mode in modes.items():
            part.training = mode


def _ask(loaders: Any) -> None:
    for loader in _leaves(loaders):
        if not isinstance(loader, DataLoader):
            iter(loader)


def _leaves(loaders: Any) -> list[Any]:
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    given = loaders if isinstance(loaders, list | tuple) else [loaders]
    return [loader for loader in given if loader is not None]
