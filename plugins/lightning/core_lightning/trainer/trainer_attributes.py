"""Attributes of the Trainer that programs for Lightning read and set."""

from __future__ import annotations

import dataclasses
import math
from contextlib import AbstractContextManager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from core import Callback, ConfigurationError, GradientClipping, Logger
from core import Trainer as CoreTrainer
from core_lightning.trainer.loops import EvaluationLoop, FitLoop
from core_lightning.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from core_lightning.utilities.gradients import GradClipAlgorithmType


def _option(name: str, doc: str, *, none: Any = None) -> Any:
    """An option of the Trainer that can be set, from the next stage on; `none` is what None
    means.
    """

    def get(self: TrainerAttributes) -> Any:
        value = getattr(self.options, name)
        if value is None:
            return none
        return value

    def put(self: TrainerAttributes, value: Any) -> None:
        self.options = dataclasses.replace(self.options, **{name: value})

    return property(get, put, doc=doc)


FIXED = {
    "overfit_batches": "pass it to Trainer",
    "val_check_batch": "set val_check_interval, before fit",
    "enable_autolog_hparams": "hyperparameters are always logged",
}
"""Attributes of Lightning's Trainer that would have no effect, each with what to do."""


def _view(path: str, doc: str) -> Any:
    """A part of the Trainer that can be read."""
    return property(attrgetter(path), doc=doc)


def _algorithm(name: str) -> Any:
    return GradClipAlgorithmType(name)


def _refuse(trainer: TrainerAttributes, loop: Any) -> None:
    raise ConfigurationError(
        f"A Trainer's loop can't be replaced by {type(loop).__name__}: core has loops of its own, "
        "and these attributes are limits and counters. Use hooks, or write the loop with Fabric."
    )


class TrainerAttributes(CoreTrainer):
    """The Trainer with attributes under Lightning's names. An option that is set holds for the next
    stage.
    """

    left_out: Callback | None = None
    limit_train_batches = _option(
        "limit_train_batches", "Batches of a training epoch, or a fraction.", none=1.0
    )
    limit_val_batches = _option(
        "limit_val_batches", "Batches of a validation run, or a fraction.", none=1.0
    )
    limit_test_batches = _option(
        "limit_test_batches", "Batches of a test run, or a fraction.", none=1.0
    )
    limit_predict_batches = _option(
        "limit_predict_batches", "Batches of a prediction run, or a fraction.", none=1.0
    )
    val_check_interval = _option(
        "val_check_interval", "Batches between validations, or a fraction.", none=1.0
    )
    check_val_every_n_epoch = _option("check_val_every_n_epoch", "Epochs between validations.")
    reload_dataloaders_every_n_epochs = _option(
        "reload_dataloaders_every_n_epochs", "Epochs between new loaders."
    )
    log_every_n_steps = _option(
        "log_every_n_steps", "Optimizer steps between step values for the loggers."
    )

    @property
    def num_sanity_val_steps(self) -> int | float:
        """Validation batches before training; infinite for all."""
        steps = self.options.num_sanity_val_steps
        if steps < 0:
            return math.inf
        return steps

    @num_sanity_val_steps.setter
    def num_sanity_val_steps(self, steps: int | float) -> None:
        if steps == math.inf:
            steps = -1
        self.options = dataclasses.replace(self.options, num_sanity_val_steps=int(steps))

    @property
    def gradient_clip_val(self) -> float | None:
        """The limit of gradients, or None."""
        return getattr(self.clipping, "value", None)

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        clipping = None
        if value:
            clipping = GradientClipping(value, _algorithm(self.gradient_clip_algorithm or "norm"))
        self.options = dataclasses.replace(self.options, clipping=clipping)

    @property
    def gradient_clip_algorithm(self) -> str | None:
        """`"norm"`, `"value"`, or None."""
        return getattr(self.clipping, "algorithm", None)

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, algorithm: str) -> None:
        clipping = self.clipping and dataclasses.replace(
            self.clipping, algorithm=_algorithm(algorithm)
        )
        self.options = dataclasses.replace(self.options, clipping=clipping)

    interrupted = property(
        lambda self: self.state.status == TrainerStatus.INTERRUPTED,
        doc="True if the last stage has ended by an error or a signal.",
    )

    @property
    def enable_validation(self) -> bool:
        """True if this `fit` validates: there are a step, loaders, and a limit that isn't 0."""
        has_step = getattr(self.module, "validation_step", None) is not None
        return has_step and bool(self.num_val_batches) and self.limit_val_batches != 0

    @property
    def logger(self) -> Logger | None:
        """The first logger, if there is one."""
        return super().logger

    @logger.setter
    def logger(self, logger: Logger | bool | None) -> None:
        if logger is True:
            raise ConfigurationError("trainer.logger = True: expected a logger, or None for none.")
        self.loggers = []
        if logger:
            self.loggers = [logger]

    @property
    def state(self) -> TrainerState:  # type: ignore[override]  # with Lightning's enums
        """The activity of this Trainer: status, function, and the stage within it."""
        state = super().state
        found = TrainerState(TrainerStatus(state.status))
        if state.fn is not None:
            found.fn = TrainerFn(state.fn)
        if state.stage is not None:
            found.stage = RunningStage(state.stage)
        return found

    fit_loop = property(FitLoop, _refuse, doc="Limits and counters of training.")
    validate_loop = property(
        lambda self: EvaluationLoop(self, "val"), _refuse, doc="Batches of `validate`."
    )
    test_loop = property(
        lambda self: EvaluationLoop(self, "test"), _refuse, doc="Batches of `test`."
    )
    predict_loop = property(
        lambda self: EvaluationLoop(self, "predict"), _refuse, doc="Batches of `predict`."
    )

    min_epochs = _view("options.min_epochs", "Epochs for which a stop waits.")
    min_steps = _view("options.min_steps", "Optimizer steps for which a stop waits.")
    accelerator = _view("strategy.accelerator", "The kind of device.")
    precision_plugin = _view("strategy.precision_plugin", "The number formats.")
    lr_scheduler_configs = _view(
        "strategy.lr_schedulers", "The schedulers, each with when it is stepped."
    )

    optimizers = property(
        attrgetter("strategy.optimizers"),
        lambda self, optimizers: setattr(self.strategy, "optimizers", optimizers),
        doc="The optimizers, also after `fit`.",
    )
    scaler = property(
        lambda self: getattr(self.precision_plugin, "scaler", None),
        doc="The scaler of float16's loss, or None.",
    )

    @property
    def evaluating(self) -> bool:
        """True in validation and test batches, in `fit` too."""
        return self.validating or self.testing or self.sanity_checking

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any] | None:
        """The number of shares of the data and this rank's; None for one rank."""
        strategy = self.strategy
        if strategy.world_size == 1:
            return None
        return {"num_replicas": strategy.data_parallel_size, "rank": strategy.data_parallel_rank}

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[object]:
        """A context in which parameters are made on the device and with its dtype; True leaves
        their values open.
        """
        return self.strategy.init_context(empty=bool(empty_init))

    @property
    def _accelerator_connector(self) -> SimpleNamespace:
        """The parts of the run, where callbacks of packages look for them."""
        strategy = self.strategy
        return SimpleNamespace(
            accelerator=strategy.accelerator,
            cluster_environment=getattr(strategy, "cluster_environment", None),
            is_distributed=strategy.world_size > 1,
            _parallel_devices=list(strategy.parallel_devices),
            strategy=strategy,
        )

    @property
    def checkpoint_callback(self) -> Any:
        """The first ModelCheckpoint, also one that `fast_dev_run` leaves out; None without one."""
        return super().checkpoint_callback or self.left_out

    @property
    def is_last_batch(self) -> bool:
        """True in the last batch of a training epoch."""
        return (
            self.run.finished_fit is not None
            or self.fit_loop.batch_idx + 1 >= self.num_training_batches
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED:
            raise ConfigurationError(f"trainer.{name} can't be set here: {FIXED[name]}.")
        super().__setattr__(name, value)
