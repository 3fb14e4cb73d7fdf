"""Searches for settings, called by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError
from core.trainer.callbacks.finders.batch_size_finder import BatchSizeFinder
from core.trainer.callbacks.finders.learning_rate_finder import LearningRateFinder

if TYPE_CHECKING:
    from torch import nn

    from core.trainer.data.datamodule import DataModule
    from core.trainer.trainer import Trainer
    from core.trainer.tuning.learning_rate_curve import LearningRateCurve


class Tuner:
    """Searches for a learning rate or a batch size before `fit`, as the callbacks of these names do when it begins."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: Literal["fit"] = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LearningRateCurve:
        """Train a copy of the module with growing learning rates.

        Args:
            model: whose attribute `lr` or `learning_rate` gets the suggestion.
            train_dataloaders: as for `fit`.
            val_dataloaders: not read: nothing is validated.
            dataloaders: for methods other than `fit`; has to stay None.
            datamodule: as for `fit`.
            method: `"fit"`.
            min_lr: the first rate.
            max_lr: the last rate.
            num_training: optimizer steps, each with another rate.
            mode: whether rates grow by a factor or by a summand.
            early_stop_threshold: after ten steps, stop when the smoothed loss is more than so many times its best since
                then; None doesn't.
            update_attr: write the suggestion to the module.
            attr_name: of the module's attribute; "" is `lr` or `learning_rate`.

        Returns:
            The curve, with `suggestion()` and `plot()`.

        Raises:
            ConfigurationError: what can't be searched for, and why.
        """
        _check_method(method, dataloaders)
        finder = LearningRateFinder(min_lr, max_lr, num_training, mode, early_stop_threshold, update_attr, attr_name)
        call = self._trainer.check_fit_call(model, train_dataloaders, None, datamodule)
        finder.check_fit(self._trainer, call.module)
        return finder.search(self._trainer, call)

    def scale_batch_size(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: Literal["fit"] = "fit",
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
    ) -> int:
        """Train a copy of the module with growing batches.

        Args:
            model: with `train_dataloader`, unless the data module has it.
            train_dataloaders: a DataModule may stand here; loaders are refused.
            val_dataloaders: not read: nothing is validated.
            dataloaders: for methods other than `fit`; has to stay None.
            datamodule: as for `fit`.
            method: `"fit"`.
            mode: `"power"` doubles the size until it doesn't fit; `"binsearch"` then halves the interval that is left.
            steps_per_trial: batches of each size.
            init_val: the first size.
            max_trials: sizes to try at most.
            batch_arg_name: of the attribute that gets the result.

        Returns:
            The largest size that fits into the memory of every rank.

        Raises:
            ConfigurationError: what can't be searched for, and why.
            DeviceError: not even one sample fits.
        """
        _check_method(method, dataloaders)
        finder = BatchSizeFinder(mode, steps_per_trial, init_val, max_trials, batch_arg_name)
        call = self._trainer.check_fit_call(model, train_dataloaders, None, datamodule)
        finder.check_fit(self._trainer, call.module)
        return finder.search(self._trainer, call)


def _check_method(method: str, dataloaders: Any) -> None:
    if method != "fit" or dataloaders is not None:
        raise ConfigurationError(
            f"method={method!r}, dataloaders={type(dataloaders).__name__}: settings are searched for in training only. "
            "Leave both out, and pass train_dataloaders or datamodule."
        )
