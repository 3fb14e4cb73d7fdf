"""Finds a batch size before training begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import check_choice, check_int
from core_training.tuning.attributes import find_attribute, write_attribute
from core_training.tuning.batch_size_search import BatchSizeSearch

if TYPE_CHECKING:
    from torch import nn

    from core_training.loops.fit_call import FitCall
    from core_training.trainer import Trainer

_NAME = "BatchSizeFinder"


class BatchSizeFinder(Callback):
    """Trains a copy of the module with growing batches, until a rank's memory is full, and takes
    the largest that fit.

    The search runs when `fit` begins. The size is written to the attribute `batch_size` of the data
    module or module (or of their `hparams`), whose `train_dataloader` makes the loader with it. It
    is never more than the samples of a rank's shard of the data. A run that resumes doesn't search,
    and has the size that it was begun with.

    A trial is forward, backward and the optimizer's step. On several ranks each makes them by
    itself; a training step that talks to other ranks can't be tried.
    """

    def __init__(
        self,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
    ) -> None:
        """Create the callback.

        Args:
            mode: `"power"` doubles the size until it doesn't fit; `"binsearch"` then halves the
                interval that is left.
            steps_per_trial: batches of each size.
            init_val: the first size.
            max_trials: sizes to try at most.
            batch_arg_name: of the attribute.

        Raises:
            ConfigurationError: arguments that can't be.
        """
        check_choice(_NAME, "mode", mode, ("power", "binsearch"))
        for name, value in (
            ("steps_per_trial", steps_per_trial),
            ("init_val", init_val),
            ("max_trials", max_trials),
        ):
            check_int(_NAME, name, value, least=1, meaning="a number, from 1")
        self.mode = mode
        self.steps_per_trial = steps_per_trial
        self.init_val = init_val
        self.max_trials = max_trials
        self.batch_arg_name = batch_arg_name
        self.optimal_batch_size: int | None = None
        """The result of the last search."""

    def state_dict(self) -> dict[str, Any]:
        """The size that was found."""
        return {"batch_size": self.optimal_batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.optimal_batch_size = state["batch_size"]

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the size for a run that goes on."""
        checkpoint["batch_size"] = self.optimal_batch_size

    def on_load_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Make the loaders with the size of the run that goes on."""
        size = checkpoint.get("batch_size")
        if size is not None and trainer.trains:
            owners = [owner for owner in (trainer.datamodule, module) if owner is not None]
            write_attribute(owners, self.batch_arg_name, size)
            trainer.loaders.ask_again()

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse what can't be searched for.

        Raises:
            ConfigurationError: no automatic optimization.
            UnsupportedError: the strategy's steps or parameters are its own.
        """
        trainer.check_copied_fit(_NAME, module)

    def before_fit(self, trainer: Trainer, call: FitCall) -> None:
        """Search, write the result where the loaders are made, and say so on rank 0."""
        trainer.print(f"{_NAME} has set {self.batch_arg_name} to {self.search(trainer, call)}.")

    def search(self, trainer: Trainer, call: FitCall) -> int:
        """Search, write the size, and return it.

        Raises:
            ConfigurationError: loaders were passed, whose batch size can't be changed, or no hook
                uses the attribute.
            DeviceError: not even one sample fits.
        """
        if call.train.owner is None:
            raise ConfigurationError(
                f"{_NAME} makes loaders of several batch sizes, and train_dataloaders were passed "
                "as they are. Define train_dataloader() in a DataModule or in "
                f"{type(call.module).__name__}, with DataLoader(..., "
                f"batch_size=self.{self.batch_arg_name})."
            )
        find_attribute(_NAME, call.owners, [self.batch_arg_name])
        search = BatchSizeSearch(self)
        trainer.fit_on_copies(call, search, max_steps=1)
        self.optimal_batch_size = self.accepted(search.size)
        write_attribute(call.owners, self.batch_arg_name, self.optimal_batch_size)
        return self.optimal_batch_size

    def accepted(self, size: int) -> int:
        """The size that is written, for the one that was found: here the same."""
        return size
