"""The Trainer, with Lightning's arguments, their order and their meaning."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from core import Callback, DataModule, PathLike
from core import Trainer as CoreTrainer
from core.callbacks import ModelCheckpoint as CoreModelCheckpoint
from core.callbacks import ModelSummary
from core.trainer import LoopPolicy
from core_lightning.callbacks._callbacks import ModelCheckpoint
from core_lightning.checkpoints.checkpoint_io import LightningCheckpointIO, has_checkpoint_io
from core_lightning.checkpoints.left_out import note_objects
from core_lightning.checkpoints.objects import PickledObjects
from core_lightning.checkpoints.trusted_reads import TRUSTS
from core_lightning.decisions.differences import note
from core_lightning.fit.lr_schedules import LRSchedules
from core_lightning.fit.made_loaders import MadeLoaders
from core_lightning.fit.model_modes import ModelModes, ModesAfterwards
from core_lightning.fit.numbered_batches import NumbersBatches
from core_lightning.fit.replaced_methods import ReplacedMethods
from core_lightning.fit.same_draws import SameDraws
from core_lightning.fit.strategy_hooks import Assigned, TellsStrategy
from core_lightning.loggers._loggers import default_logger, save_after_logs
from core_lightning.strategies._environments import listed
from core_lightning.strategies._precisions import (
    keep_no_casts,
    replace_half_on_cpu,
    with_lightnings_class,
)
from core_lightning.strategies.strategy_names import named
from core_lightning.trainer.outside import callbacks_of_packages
from core_lightning.trainer.trainer_attributes import TrainerAttributes

_OPTIONAL = ("min_epochs", "min_steps", "use_distributed_sampler")
"""Arguments that None leaves open."""


class Trainer(TrainerAttributes):
    """Trains and evaluates a module; see `core.Trainer`.

    Checkpoints are single files in Lightning's form, and logs go to `lightning_logs`, unless the
    arguments say otherwise. `validate`, `test` and `predict` without a model use the best
    checkpoint of `fit`.
    """

    def __init__(
        self,
        *,
        logger: Any = None,
        callbacks: Any = None,
        enable_checkpointing: bool | None = None,
        plugins: Any = None,
        default_root_dir: PathLike | None = None,
        barebones: bool = False,
        use_distributed_sampler: bool | None = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        **options: Any,
    ) -> None:
        """Check all arguments; nothing is started yet.

        Args:
            logger: None and True are TensorBoard's, or rows of a CSV file where tensorboard isn't
                installed; in `lightning_logs`.
            callbacks: one or several.
            enable_checkpointing: None is yes, unless `barebones`: without a ModelCheckpoint in
                `callbacks`, one is there by default.
            plugins: as `core.Trainer` takes them. With a CheckpointIO for another
                form of checkpoints: `"distributed"` is core's own.
            default_root_dir: where checkpoints and logs go; None is the current folder.
            barebones: nothing but the loop.
            use_distributed_sampler: give each rank its share of the data. None is yes on several
                ranks; on one, loaders stay untouched, and so shuffle as they do under Lightning.
            enable_autolog_hparams: True is what always holds.
            model_registry: there is none.
            options: all others of `core.Trainer`.
        """
        note(
            "core trains in Lightning's place, and does some things differently on purpose.",
            stacklevel=2,
        )
        if model_registry is not None or not enable_autolog_hparams:
            note("model_registry and enable_autolog_hparams=False have no effect.", stacklevel=2)
        replace_half_on_cpu(options)
        if logger in (None, True) and not barebones:
            logger = default_logger(default_root_dir or os.getcwd())
        if options.get("log_every_n_steps") == 0:
            options["log_every_n_steps"] = sys.maxsize
        if isinstance(callbacks, str | Callback):
            callbacks = [callbacks]
        own = list(callbacks or ())
        has_summary = any(isinstance(each, ModelSummary) for each in own)
        if has_summary and options.get("enable_model_summary") is False:
            options["enable_model_summary"] = True
        savers = [each for each in own if isinstance(each, CoreModelCheckpoint)]
        saves = enable_checkpointing
        if saves is None:
            saves = not barebones
        if saves and not savers:
            savers = [ModelCheckpoint()]  # programs look for it by its class
            own += savers
        if options.get("fast_dev_run") and savers:
            self.left_out = savers[0]
        for name in _OPTIONAL:
            if options.get(name) is None:
                options.pop(name, None)
        super().__init__(
            logger=logger,
            callbacks=own,
            enable_checkpointing=enable_checkpointing,
            plugins=_with_checkpoint_io(listed(plugins)),
            default_root_dir=default_root_dir,
            barebones=barebones,
            use_distributed_sampler=use_distributed_sampler is not False,
            **options,
        )
        self.barebones = barebones
        self.gradient_clip_val = self.gradient_clip_val  # with Lightning's enum
        keep_no_casts(self.strategy.precision_plugin)
        with_lightnings_class(self.strategy.precision_plugin)
        self.strategy.__class__ = named(type(self.strategy))

        modes = ModelModes()
        observers: list[Callback] = [
            NumbersBatches(),
            TellsStrategy(),
            modes,
            ModesAfterwards(modes),
            ReplacedMethods(),
            LRSchedules(),
            Assigned(),
        ]
        keeps_loaders = use_distributed_sampler is None and self.world_size == 1
        if keeps_loaders:
            self.options = dataclasses.replace(self.options, use_distributed_sampler=False)
            observers = [SameDraws(), MadeLoaders(), *observers]
        self.loop_policy = _LightningLoops(self, observers, asks=not keeps_loaders)
        self.passed: dict[str, Any] = {}
        self.loaders_of: dict[str, set[int | None]] = {}
        for each in self.loggers:
            save_after_logs(each)
        self.callbacks += callbacks_of_packages()
        if TRUSTS and not any(isinstance(callback, PickledObjects) for callback in self.callbacks):
            self.callbacks.append(PickledObjects(trusted=True))

    # The order of arguments, and the checkpoint that is meant, are Lightning's.

    def fit(  # type: ignore[override]  # Lightning takes a whole checkpoint
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train, and validate in between; see `core.Trainer.fit`.

        Nothing in a checkpoint is executed, whatever `weights_only` says, but by
        `install(trusted=True)`.
        """
        if self.checkpoint_callback is not None:
            note_objects(model, self.callbacks)
        self.passed = {"train": train_dataloaders, "val": val_dataloaders}
        if train_dataloaders is not None:  # which no hook could make anew
            self.options = dataclasses.replace(self.options, reload_dataloaders_every_n_epochs=0)
        self.strategy.optimizers, self.strategy.lr_schedulers = [], []  # those of a fit before
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path)
        self._keep(self.run.finished_fit)

    def validate(  # type: ignore[override]  # Lightning's order
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run `validation_step`; see `core.Trainer.validate`. Without a model, with the best
        weights of `fit`.
        """
        path = self._best(model, ckpt_path)
        results = self._after_fit(super().validate, model, dataloaders, datamodule, path, verbose)
        return self._by_loader(results)

    def test(  # type: ignore[override]  # Lightning's order
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run `test_step`; see `core.Trainer.test`. Without a model, with the best weights of
        `fit`.
        """
        path = self._best(model, ckpt_path)
        results = self._after_fit(super().test, model, dataloaders, datamodule, path, verbose)
        return self._by_loader(results)

    def predict(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: PathLike | None = None,
        weights_only: bool | None = None,
    ) -> list[Any] | None:
        """Run `predict_step`; see `core.Trainer.predict`. Without a model, with the best weights of
        `fit`.
        """
        path = self._best(model, ckpt_path)
        return self._after_fit(  # type: ignore[no-any-return]
            super().predict, model, dataloaders, datamodule, return_predictions, path
        )

    def save_checkpoint(
        self, filepath: PathLike, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """All ranks. Save everything from which a run can go on; see
        `core.Trainer.save_checkpoint`.
        """
        super().save_checkpoint(filepath, bool(weights_only))
        for callback in self.callbacks:
            if isinstance(callback, CoreModelCheckpoint) and callback.dirpath == os.path.dirname(
                filepath
            ):
                for logger in self.loggers:
                    getattr(logger, "after_save_checkpoint", lambda _: None)(callback)

    def _after_fit(self, evaluate: Callable[..., Any], *given: Any) -> Any:
        """Evaluate, and keep what there is of the last fit."""
        self.loaders_of = {}
        finished = self.run.finished_fit
        found = evaluate(*given)
        self._keep(finished)
        return found

    def _keep(self, finished: Any) -> None:
        """Keep the optimizers of the last fit, which programs look at and save, until the next
        one.
        """
        if finished is not None:
            self.run.finished_fit = finished
            self.strategy.optimizers = finished.optimizers
            self.strategy.lr_schedulers = finished.lr_schedulers

    def _by_loader(self, results: list[dict[str, float]]) -> list[dict[str, float]]:
        """A dict a loader; a name without an index is in those of the loaders that have logged
        it.
        """
        for name, indices in self.loaders_of.items():
            for index, each in enumerate(results):
                if index not in indices:
                    each.pop(name, None)
        return results

    def _best(self, model: nn.Module | None, ckpt_path: PathLike | None) -> PathLike | None:
        """The path of what Lightning calls the best, which without a monitor is the newest."""
        if ckpt_path == "best" or (model is None and ckpt_path is None):
            monitoring = [each for each in self.checkpoint_callbacks if each.monitor]
            saver: Any = (monitoring or [self.checkpoint_callback])[0]
            if saver is not None and saver.best_model_path:
                return str(saver.best_model_path)
        return ckpt_path


class _LightningLoops(LoopPolicy):
    """The choices of Lightning's loops, where core's are others."""

    steps_schedulers = False
    ends_cut_epochs = True

    def __init__(self, trainer: Trainer, observers: list[Callback], *, asks: bool) -> None:
        self._trainer, self.observers, self.asks_beyond_length = trainer, observers, asks

    def step_outputs(self, output: Any, loss: Tensor | None) -> dict[str, Any]:
        """A dict, with the loss as it was divided for accumulation."""
        step = self._trainer.running_step  # None in a search, whose run is a copy
        found: dict[str, Any] = {}
        if isinstance(output, dict):
            found.update(output)
        if step is not None and step.manual:
            if isinstance(output, Tensor):
                found["loss"] = output.detach()
            return found
        if loss is None:
            return {}
        if step is not None:
            loss = loss / step.num_accumulated
        found["loss"] = loss
        return found


def _with_checkpoint_io(given: list[Any]) -> list[Any]:
    """The plugins, with Lightning's form of checkpoints as the default if they have none."""
    if has_checkpoint_io(given):
        return given
    default = LightningCheckpointIO()
    default.is_default = True
    return [*given, default]


def _signature() -> inspect.Signature:
    """Core's arguments with Lightning's defaults, and two that core hasn't."""
    signature = inspect.signature(CoreTrainer.__init__)
    found = []
    for name, item in signature.parameters.items():
        item = item.replace(annotation=item.empty)
        if name in _OPTIONAL:
            item = item.replace(default=None)
        found.append(item)
    for name, default in (("enable_autolog_hparams", True), ("model_registry", None)):
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return signature.replace(parameters=found)


Trainer.__init__.__signature__ = _signature()  # type: ignore[attr-defined]  # programs list the options by it
