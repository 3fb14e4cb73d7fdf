"""The callbacks whose arguments Lightning has in another order, or under another name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from core.callbacks import BasePredictionWriter as CoreBasePredictionWriter
from core.callbacks import EarlyStopping as CoreEarlyStopping
from core.callbacks import ModelCheckpoint as CoreModelCheckpoint
from core.callbacks import RichProgressBar

if TYPE_CHECKING:
    from core import PathLike


class ModelCheckpoint(CoreModelCheckpoint):
    """See `core.callbacks.ModelCheckpoint`."""

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
            dirpath,
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


class EarlyStopping(CoreEarlyStopping):
    """See `core.callbacks.EarlyStopping`."""

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: Literal["min", "max"] = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__(
            monitor,
            mode=mode,
            patience=patience,
            min_delta=min_delta,
            strict=strict,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            check_on_train_epoch_end=check_on_train_epoch_end,
            verbose=verbose,
        )


class WriteInterval(StrEnum):
    """The moment at which predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """True if they are written after each batch."""
        return self is not self.EPOCH

    @property
    def on_epoch(self) -> bool:
        """True if they are written at the end."""
        return self is not self.BATCH


class BasePredictionWriter(CoreBasePredictionWriter):
    """See `core.callbacks.BasePredictionWriter`."""

    @property
    def interval(self) -> WriteInterval:
        """The moment at which predictions are written."""
        return WriteInterval(self.write_interval)


class TQDMProgressBar(RichProgressBar):
    """The progress bar of core; see `core.callbacks.RichProgressBar`."""

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(leave=leave)
