"""Searches for settings, called by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from core.contract import ConfigurationError
from core_training.tuning.batch_size_finder import BatchSizeFinder
from core_training.tuning.learning_rate_finder import LearningRateFinder

if TYPE_CHECKING:
    from torch import nn

    from core_training.stage_data.datamodule import DataModule
    from core_training.trainer import Trainer
    from core_training.tuning.learning_rate_curve import LearningRateCurve


class Tuner:
    """Searches for a learning rate or a batch size before `fit`, as the callbacks of these names do
    when it begins.

    Both methods take the arguments of `fit`. `val_dataloaders` isn't read, since nothing is
    validated; of `method` and `dataloaders`, which programs for other stages pass, only the
    defaults are possible.
    """

    learning_rate_finder: ClassVar[type[LearningRateFinder]] = LearningRateFinder
    """The class that `lr_find` searches with."""
    batch_size_finder: ClassVar[type[BatchSizeFinder]] = BatchSizeFinder
    """The class that `scale_batch_size` searches with."""

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
        *,
        num_training: int = 100,
        **options: Any,
    ) -> LearningRateCurve:
        """Train a copy of the module with growing learning rates.

        Args:
            model: whose attribute `lr` or `learning_rate` gets the suggestion.
            train_dataloaders: as for `fit`.
            val_dataloaders: not read.
            dataloaders: None.
            datamodule: as for `fit`.
            method: `"fit"`.
            num_training: optimizer steps, each with another rate.
            options: the other arguments of `LearningRateFinder`, such as `min_lr` and `max_lr`.

        Returns:
            The curve, with `suggestion()` and `plot()`.

        Raises:
            ConfigurationError: what can't be searched for, and why.
        """
        finder = self.learning_rate_finder(num_training_steps=num_training, **options)
        curve: LearningRateCurve = self._search(
            finder, model, train_dataloaders, dataloaders, datamodule, method
        )
        return curve

    def scale_batch_size(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: Literal["fit"] = "fit",
        **options: Any,
    ) -> int:
        """Train a copy of the module with growing batches.

        Args:
            model: with `train_dataloader`, unless the data module has it.
            train_dataloaders: a DataModule may stand here; loaders are refused.
            val_dataloaders: not read.
            dataloaders: None.
            datamodule: as for `fit`.
            method: `"fit"`.
            options: the arguments of `BatchSizeFinder`, such as `mode` and `max_trials`.

        Returns:
            The largest size that fits into the memory of every rank.

        Raises:
            ConfigurationError: what can't be searched for, and why.
            DeviceError: not even one sample fits.
        """
        finder = self.batch_size_finder(**options)
        size: int = self._search(finder, model, train_dataloaders, dataloaders, datamodule, method)
        return size

    def _search(
        self,
        finder: Any,
        model: nn.Module,
        train_dataloaders: Any,
        dataloaders: Any,
        datamodule: DataModule | None,
        method: str,
    ) -> Any:
        """Search with the arguments of `fit`, and return the result."""
        if method != "fit" or dataloaders is not None:
            raise ConfigurationError(
                f"method={method!r}, dataloaders={type(dataloaders).__name__}: settings are "
                "searched for in training only. Leave both out, and pass train_dataloaders or "
                "datamodule."
            )
        call = self._trainer.check_fit_call(model, train_dataloaders, None, datamodule)
        finder.check_fit(self._trainer, call.module)
        return finder.search(self._trainer, call)
