"""The callbacks whose arguments Lightning has in another order, or under another name."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Literal

import torch
from torch import nn

from core import PathLike, Trainer
from core.callbacks import ModelCheckpoint as CoreModelCheckpoint
from core_lightning.decisions.overrides import RefusesOverrides
from core_lightning.utilities.file_systems import get_filesystem
from core_training.predictions import BasePredictionWriter as CoreBasePredictionWriter

_SAVING = (
    "_find_last_checkpoints _format_checkpoint_name _get_metric_interpolated_filepath_name "
    "_link_checkpoint _monitor_candidates _remove_checkpoint _save_checkpoint "
    "_save_last_checkpoint _save_monitor_checkpoint _save_none_monitor_checkpoint "
    "_save_topk_checkpoint _should_remove_checkpoint _should_save_on_train_epoch_end "
    "_should_skip_saving_checkpoint _update_best_and_save check_monitor_top_k file_exists "
    "format_checkpoint_name"
)


class ModelCheckpoint(RefusesOverrides, CoreModelCheckpoint):
    """See `core.callbacks.ModelCheckpoint`.

    `dirpath` is made absolute, and a subclass may have an `on_train_start` that doesn't call this
    one's.
    """

    uncalled = dict.fromkeys(
        _SAVING.split(),
        "Save by trainer.save_checkpoint in a hook of your own, or write a CheckpointIO.",
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hook = cls.__dict__.get("on_train_start")
        if hook is not None:
            cls.on_train_start = _after_base(hook)  # type: ignore[method-assign]

    def __init__(
        self,
        dirpath: PathLike | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: Literal["min", "max"] = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: Any = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        super().__init__(
            _absolute(dirpath),
            filename,
            monitor=monitor,
            verbose=verbose,
            save_last=save_last or False,
            save_top_k=save_top_k,
            save_on_exception=save_on_exception,
            save_weights_only=save_weights_only,
            mode=mode,
            auto_insert_metric_name=auto_insert_metric_name,
            every_n_train_steps=every_n_train_steps,
            train_time_interval=train_time_interval,
            every_n_epochs=every_n_epochs,
            save_on_train_epoch_end=save_on_train_epoch_end,
            enable_version_counter=enable_version_counter,
        )

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """Save what has waited for it: nothing is saved because training ends."""
        CoreModelCheckpoint.on_train_start(self, trainer, module)
        super().on_train_end(trainer, module)

    def format_checkpoint_name(
        self,
        metrics: Mapping[str, Any],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """The path of a checkpoint with these values, by the callback's pattern or another; a
        missing value is 0.
        """

        def fill(field: re.Match[str]) -> str:
            name, form = field.groups()
            value = metrics.get(name, 0)
            if isinstance(value, torch.Tensor):
                value = value.item()
            shown = format(value, form)
            if self.auto_insert_metric_name:
                shown = f"{name}{self.CHECKPOINT_EQUALS_CHAR}{shown}"
            return shown

        pattern = filename or self.filename or self.CHECKPOINT_JOIN_CHAR.join(("{epoch}", "{step}"))
        parts = [prefix, re.sub(r"\{([^{}:]+):?([^{}]*)\}", fill, pattern)]
        if ver is not None:
            parts.append(f"v{ver}")
        name = self.CHECKPOINT_JOIN_CHAR.join(filter(None, parts)) + self.FILE_EXTENSION
        return os.path.join(self.dirpath or "", name)

    def check_monitor_top_k(self, trainer: Trainer, current: torch.Tensor | None = None) -> bool:
        """All ranks. True if a checkpoint with this score would be kept."""
        if current is None or self.save_top_k < 1:
            return self.save_top_k == -1
        worst = self.kth_value
        if worst is None or len(self.best_k_models) < self.save_top_k:
            is_kept = True
        elif self.mode == "min":
            is_kept = bool(current < worst)
        else:
            is_kept = bool(current > worst)
        return trainer.strategy.reduce_boolean_decision(is_kept)

    @property
    def kth_value(self) -> torch.Tensor | None:
        """The score of `kth_best_model_path`, a scalar; None if there is none."""
        return self.best_k_models.get(self.kth_best_model_path)

    def to_yaml(self, filepath: PathLike | None = None) -> None:
        """Rank 0. Write the scores of the checkpoints that are kept, by path.

        Args:
            filepath: a local file; None is `best_k_models.yaml` in `dirpath`.
        """
        path = filepath or os.path.join(self.dirpath or "", "best_k_models.yaml")
        with open(path, "w", encoding="utf-8") as file:
            for name, score in self.best_k_models.items():
                value = repr(float(score)).replace("inf", ".inf")
                file.write(f"{json.dumps(name)}: {value}\n")  # JSON's texts are YAML's too

    def file_exists(self, filepath: PathLike, trainer: Trainer) -> bool:
        """All ranks. True if rank 0 finds the file or folder."""
        return bool(
            trainer.strategy.broadcast(get_filesystem(filepath).exists(os.fspath(filepath)))
        )


def _absolute(path: PathLike | None) -> PathLike | None:
    """The path from the root, for a local one: a program may change its folder later."""
    if path is None or "://" in os.fspath(path):
        return path
    return os.path.realpath(os.path.expanduser(path))


def _after_base(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook of a subclass, after core's own, which notes where training begins. Noting it twice
    changes nothing.
    """

    @functools.wraps(hook)
    def on_train_start(self: ModelCheckpoint, trainer: Trainer, module: nn.Module) -> None:
        CoreModelCheckpoint.on_train_start(self, trainer, module)
        hook(self, trainer, module)

    return on_train_start


class WriteInterval(StrEnum):
    """The moment at which predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    on_batch = property(
        lambda self: self is not self.EPOCH, doc="True if they are written after each batch."
    )
    on_epoch = property(
        lambda self: self is not self.BATCH, doc="True if they are written at the end."
    )


class BasePredictionWriter(CoreBasePredictionWriter):
    """See `core.callbacks.BasePredictionWriter`."""

    interval = property(
        lambda self: WriteInterval(self.write_interval), doc="The moment at which they are written."
    )

    def on_predict_start(self, trainer: Any, module: nn.Module) -> None:
        """Begin with nothing. One loader's predictions come without a list around them."""
        super().on_predict_start(trainer, module)
        if len(trainer.loaders.predict) == 1:
            vars(self)["write_on_epoch_end"] = lambda trainer, module, predictions, indices: type(
                self
            ).write_on_epoch_end(self, trainer, module, predictions[0], indices)

    def on_predict_end(self, trainer: Any, module: nn.Module) -> None:
        """Keep nothing of it."""
        vars(self).pop("write_on_epoch_end", None)


def get_standard_metrics(trainer: Trainer) -> dict[str, int | str]:
    """The values that each bar shows: the loggers' version, of a long one the end."""
    versions = list(dict.fromkeys(logger.version for logger in trainer.loggers))
    version: Any = "_".join(map(str, versions))
    if len(versions) == 1:
        version = versions[0]
    if version in ("", None):
        return {}
    if isinstance(version, str):
        version = version[-4:]
    return {"v_num": version}
