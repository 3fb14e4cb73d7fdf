"""Draws from the random state as Lightning's Trainer does before the first epoch."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.callbacks import ModelSummary
from core.checkpoint import collect_random_state
from core.data import to_device
from core_lightning.utilities.lists import as_list
from core_training.predictions import BasePredictionWriter

_MAKES = "_get_iterator"
"""The method of torch's loaders that `iter` calls."""
_TIMES = 3
"""So often Lightning's summary asks a module for its example."""


class SameDraws(Callback):
    """Asks what Lightning asks, as often, so that what draws when it is asked leaves the same
    random state.

    The summary asks for `example_input_array`, which may be a property, and gives it to `forward`,
    which may draw. Loaders of other classes than torch's are asked for an iterator once, to check
    them: one that draws its order then would shuffle differently otherwise. Training loaders that
    are made anew for an epoch are asked before it begins.

    torch's loaders draw when they are opened: those of the first epoch before `on_train_start`, and
    the first one of an evaluation before its first hook. core opens them later, and then gets the
    iterator that was made here.
    """

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Begin a stage, which checks its loaders anew."""
        self._has_checked = False
        self._opened: list[DataLoader[Any]] = []
        self._at_opening: dict[str, Any] | None = None

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Forget what was opened and not read; after a failed `prepare_data` nothing was."""
        for loader in vars(self).get("_opened", ()):
            vars(loader).pop(_MAKES, None)
        self._opened = []

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask for the example: core's own summary leaves the random state as it was."""
        vars(self).pop("on_train_batch_start", None)
        if _have_workers(trainer):
            self.on_train_batch_start = self._note_opening  # type: ignore[assignment, method-assign]
        if any(
            isinstance(callback, ModelSummary) and callback.max_depth
            for callback in trainer.callbacks
        ):
            examples = [getattr(module, "example_input_array", None) for _ in range(_TIMES)]
            if examples[-1] is not None:
                _forward(trainer, module, examples[-1])

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the training loaders, and those for validation if no sanity check has."""
        _ask(trainer.train_dataloader)
        self._ask_for_validation(trainer)
        if trainer.current_epoch == 0:
            self._open_first_epoch(trainer)

    def _open_first_epoch(self, trainer: Trainer) -> None:
        """Open the training loaders. One with workers draws its order too, which a run that goes on
        draws later.
        """
        if _have_workers(trainer):
            if trainer.ckpt_path is not None:
                return
            self._at_opening = collect_random_state(
                trainer.strategy.accelerator, trainer.strategy.root_device
            )
        self._open(_leaves(trainer.train_dataloader))

    def _note_opening(self, trainer: Trainer, module: nn.Module, *batch: Any) -> None:
        """Note where the order of the first epoch was drawn, for a run that goes on within it."""
        if self._at_opening is not None:
            if trainer.run.random_state_at_opening is not None:
                trainer.run.random_state_at_opening = self._at_opening
            self._at_opening = None

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask new training loaders, whose iterator draws a seed; those of the first epoch are asked
        once in all.
        """
        every, epoch = trainer.options.reload_dataloaders_every_n_epochs, trainer.current_epoch
        if every and epoch and epoch % every == 0:
            _ask(trainer.train_dataloader)
            for loader in _leaves(trainer.train_dataloader):
                iter(loader)

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders, the first time, and open the first of them."""
        self._ask_for_validation(trainer)
        self._open(_leaves(trainer.val_dataloaders)[:1])

    def on_test_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders, and open the first of them."""
        loaders = _leaves(trainer.test_dataloaders)
        _ask(loaders)
        self._open(loaders[:1])

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the loaders, and open the first of them."""
        _ask(trainer.predict_dataloaders)
        # which replaces them
        if not any(isinstance(callback, BasePredictionWriter) for callback in trainer.callbacks):
            self._open(_leaves(trainer.predict_dataloaders)[:1])

    def _ask_for_validation(self, trainer: Trainer) -> None:
        if not self._has_checked:
            _ask(trainer.val_dataloaders)
        self._has_checked = True

    def _open(self, loaders: list[Any]) -> None:
        """Make iterators of torch's loaders now, for whoever asks for them next."""
        for loader in loaders:
            if getattr(type(loader), "__iter__", None) is not DataLoader.__iter__:
                continue
            iterator: Any = iter(loader)
            if loader.persistent_workers:
                loader._iterator = None  # else it is begun anew, which draws again
            vars(loader)[_MAKES] = partial(_give, loader, iterator)
            self._opened.append(loader)


def _give(loader: DataLoader[Any], iterator: Any) -> Any:
    vars(loader).pop(_MAKES)
    return iterator


def _forward(trainer: Trainer, module: nn.Module, example: Any) -> None:
    """Call `forward` on an example in evaluation mode. Its errors are the summary's to report."""
    modes = {part: part.training for part in module.modules()}
    moved: Any = to_device(example, trainer.strategy.root_device)
    module.eval()
    try:
        with (
            torch.no_grad(),
            trainer.strategy.forward_context() or nullcontext(),
            suppress(Exception),
        ):
            if isinstance(moved, dict):
                module(**moved)
            else:
                module(*as_list(moved))
    finally:
        for part, mode in modes.items():
            part.training = mode


def _have_workers(trainer: Trainer) -> bool:
    return any(getattr(loader, "num_workers", 0) for loader in _leaves(trainer.train_dataloader))


def _ask(loaders: Any) -> None:
    for loader in _leaves(loaders):
        if not isinstance(loader, DataLoader):
            iter(loader)


def _leaves(loaders: Any) -> list[Any]:
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    return [loader for loader in as_list(loaders) if loader is not None]
