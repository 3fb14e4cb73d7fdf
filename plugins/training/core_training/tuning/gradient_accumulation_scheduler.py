"""Another accumulation window from some epoch on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import Capability, ConfigurationError
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import check_int, refuse_capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from core_training.trainer import Trainer

_NAME = "GradientAccumulationScheduler"


class GradientAccumulationScheduler(Callback):
    """Changes `accumulate_grad_batches` at the beginning of epochs."""

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        """Create the callback.

        Args:
            scheduling: window by epoch, counted from 0: `{0: 8, 4: 2}`. Before the first one that
                is named, it is 1.

        Raises:
            ConfigurationError: epochs or windows that can't be.
        """
        for epoch, window in scheduling.items():
            check_int(_NAME, "epoch", epoch, least=0, meaning="the number of an epoch, from 0")
            name, meaning = f"scheduling[{epoch}]", "a number of batches, from 1"
            check_int(_NAME, name, window, least=1, meaning=meaning)
        if not scheduling:
            raise ConfigurationError(f"{_NAME} got no epoch; expected a dict such as {{4: 2}}.")
        self.scheduling = {0: 1, **dict(sorted(scheduling.items()))}

    def window_of(self, epoch: int) -> int:
        """Batches that make a step in an epoch."""
        return self.scheduling[max(begin for begin in self.scheduling if begin <= epoch)]

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse what can't work together.

        Raises:
            ConfigurationError: the trainer has a window of its own, or the module steps its
                optimizers itself.
            UnsupportedError: the strategy counts the window itself.
        """
        options = trainer.options
        if options.accumulate_grad_batches != 1 or options.global_batch_size is not None:
            raise ConfigurationError(
                f"Trainer(accumulate_grad_batches={options.accumulate_grad_batches}, "
                f"global_batch_size={options.global_batch_size}) and a {_NAME} contradict each "
                "other. Leave one of them out."
            )
        if not getattr(module, "automatic_optimization", True):
            raise ConfigurationError(
                "GradientAccumulationScheduler does nothing with automatic_optimization=False, "
                "where training_step decides when to step. Leave it out."
            )
        refuse_capabilities(
            _NAME,
            trainer.strategy,
            Capability.OWNS_ACCUMULATION,
            reason="sets the accumulation window",
            cure="Use Trainer(accumulate_grad_batches=...).",
        )

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Hand the schedule to the run, which sets the window before each epoch, and counts steps
        ahead by it.
        """
        trainer.run.window_of = self.window_of
