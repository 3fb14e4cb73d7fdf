"""The Trainer, with Lightning's arguments, their order and their meaning."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from typing import Any

from torch import Tensor, nn

from core import Callback, CheckpointIO, DataModule, PathLike
from core import Trainer as CoreTrainer
from core.callbacks import ModelCheckpoint as CoreModelCheckpoint
from core.callbacks import ModelSummary
from core.registry import CHECKPOINT_IO_REGISTRY
from core_lightning.callbacks._callbacks import ModelCheckpoint
from core_lightning.checkpoints.checkpoint_io import LightningCheckpointIO
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
from core_lightning.strategies._accelerators import SetsUpAccelerator
from core_lightning.strategies._environments import listed
from core_lightning.strategies._precisions import (
    keep_no_casts,
    replace_half_on_cpu,
    with_lightnings_class,
)
from core_lightning.strategies.layer_sync import LayerSync, SyncsLayers
from core_lightning.strategies.strategy_names import named
from core_lightning.trainer.outside import callbacks_of_packages, with_variables
from core_lightning.trainer.trainer_attributes import TrainerAttributes

_OPTIONAL = ("min_epochs", "min_steps", "use_distributed_sampler")
"""Arguments that None leaves open."""


class Trainer(TrainerAttributes):
    """Trains and evaluates a module; see `core.Trainer`.

    Checkpoints are single files in Lightning's form, and logs go to `lightning_logs`, unless the
    arguments say otherwise. `validate`, `test` and `predict` without a model use the best
    checkpoint of `fit`.
    """

    @with_variables
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
            plugins: as `core.Trainer` takes them, or a LayerSync. With a CheckpointIO for another
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
            stacklevel=3,
        )
        if model_registry is not None or not enable_autolog_hparams:
            note("model_registry and enable_autolog_hparams=False have no effect.", stacklevel=3)
        replace_half_on_cpu(options, stacklevel=4)
        if logger in (None, True) and not barebones:
            logger = default_logger(default_root_dir or os.getcwd())
        if options.get("log_every_n_steps") == 0:
            options["log_every_n_steps"] = sys.maxsize
        if options.get("enable_model_summary") is False and _has(callbacks, ModelSummary):
            options["enable_model_summary"] = True
        saves = not barebones if enable_checkpointing is None else enable_checkpointing
        callbacks = _with_default(callbacks, ModelCheckpoint) if saves else callbacks
        if options.get("fast_dev_run"):
            self.left_out = next(
                (each for each in _listed(callbacks) if isinstance(each, CoreModelCheckpoint)), None
            )
        given = listed(plugins)
        syncs = [plugin for plugin in given if isinstance(plugin, LayerSync)]
        super().__init__(
            logger=logger,
            callbacks=callbacks,
            enable_checkpointing=enable_checkpointing,
            plugins=_with_checkpoint_io([plugin for plugin in given if plugin not in syncs]),
            default_root_dir=default_root_dir,
            barebones=barebones,
            use_distributed_sampler=use_distributed_sampler is not False,
            **{
                name: value
                for name, value in options.items()
                if value is not None or name not in _OPTIONAL
            },
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
            SetsUpAccelerator(),
        ]
        observers += [ReplacedMethods(), LRSchedules(), Assigned()]
        observers += map(SyncsLayers, syncs)
        if use_distributed_sampler is None and self.world_size == 1:
            self.options = dataclasses.replace(self.options, use_distributed_sampler=False)
            observers = [SameDraws(), MadeLoaders(), *observers]
            self.run.asks_beyond_length = False
        self.run.observers, self.run.ends_cut_epochs, self.run.steps_schedulers = (
            observers,
            True,
            False,
        )
        self.run.outputs_of = self._outputs_of
        self.passed: dict[str, Any] = {}
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
        self.loaders_of: dict[str, set[int | None]] = {}
        finished = self.run.finished_fit
        results = super().validate(
            model, dataloaders, datamodule, self._best(model, ckpt_path), verbose
        )
        self._keep(finished)
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
        self.loaders_of = {}
        finished = self.run.finished_fit
        results = super().test(
            model, dataloaders, datamodule, self._best(model, ckpt_path), verbose
        )
        self._keep(finished)
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
        finished = self.run.finished_fit
        found = super().predict(
            model, dataloaders, datamodule, return_predictions, self._best(model, ckpt_path)
        )
        self._keep(finished)
        return found

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

    def _outputs_of(self, output: Any, loss: Tensor | None) -> dict[str, Any]:
        """The output of a training step as hooks get it: a dict, with the loss as it was divided
        for accumulation.
        """
        step = self.running_step
        found = dict(output) if isinstance(output, dict) else {}
        if step is not None and step.manual:
            return (
                found if isinstance(output, dict) or output is None else {"loss": output.detach()}
            )
        if loss is None:
            return {}
        divided = loss / step.num_accumulated if step is not None else loss
        return {"loss": divided, **{name: value for name, value in found.items() if name != "loss"}}

    def _keep(self, finished: Any) -> None:
        """Keep the optimizers of the last fit, which programs look at and save, until the next
        one.
        """
        if finished is not None:
            self.run.finished_fit = finished
            self.strategy.optimizers, self.strategy.lr_schedulers = (
                finished.optimizers,
                finished.lr_schedulers,
            )

    def _by_loader(self, results: list[dict[str, float]]) -> list[dict[str, float]]:
        """A dict a loader; a name without an index is in those of the loaders that have logged
        it.
        """
        of = self.loaders_of
        return [
            {n: v for n, v in each.items() if index in of.get(n, {index})}
            for index, each in enumerate(results)
        ]

    def _best(self, model: nn.Module | None, ckpt_path: PathLike | None) -> PathLike | None:
        """The path of what Lightning calls the best, which without a monitor is the newest."""
        callbacks = self.checkpoint_callbacks
        saver = next(
            (callback for callback in callbacks if callback.monitor), self.checkpoint_callback
        )
        is_asked = ckpt_path == "best" or (model is None and ckpt_path is None)
        if is_asked and saver is not None and saver.best_model_path:
            return str(saver.best_model_path)
        return ckpt_path


def _with_default(callbacks: Any, kind: type[ModelCheckpoint]) -> list[Any]:
    """The user's callbacks, with one of this kind, which programs look for by its class, if they
    have none.
    """
    given = _listed(callbacks)
    return given if _has(callbacks, CoreModelCheckpoint) else [*given, kind()]


def _listed(callbacks: Any) -> list[Any]:
    return [callbacks] if isinstance(callbacks, str | Callback) else list(callbacks or ())


def _has(callbacks: Any, kind: type[Callback]) -> bool:
    return any(isinstance(item, kind) for item in _listed(callbacks))


def _with_checkpoint_io(given: list[Any]) -> list[Any]:
    """The plugins, with Lightning's form of checkpoints as the default if they have none."""
    named = (plugin in CHECKPOINT_IO_REGISTRY for plugin in given if isinstance(plugin, str))
    if any(isinstance(plugin, CheckpointIO) for plugin in given) or any(named):
        return given
    default = LightningCheckpointIO()
    default.is_default = True
    return [*given, default]


_OTHERS = inspect.signature(CoreTrainer.__init__).parameters
Trainer.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what programs list the options by
    [
        *(
            item.replace(default=None if name in _OPTIONAL else item.default, annotation=item.empty)
            for name, item in _OTHERS.items()
        ),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in (("enable_autolog_hparams", True), ("model_registry", None))
        ),
    ]
)
