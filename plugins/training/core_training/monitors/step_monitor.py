"""The base of monitors that log with the metrics of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_training.callbacks import Callback

if TYPE_CHECKING:
    from torch import nn

    from core_training.trainer import Trainer


class StepMonitor(Callback):
    """Logs every `log_every_n_steps`. Meant to be subclassed."""

    leaves_traces = True

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse to work without a logger.

        Raises:
            ConfigurationError: the trainer has no logger.
        """
        if not trainer.loggers:
            raise ConfigurationError(
                f"{type(self).__name__} has nowhere to log to: the trainer has no logger. Pass "
                "Trainer(logger=True), or leave it out."
            )

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Note where training begins."""
        self._every = trainer.options.log_every_n_steps
        self._step_seen = trainer.global_step

    def is_due(self, trainer: Trainer) -> bool:
        """True after a step whose metrics are logged, once. Ask after each batch."""
        before = self._step_seen
        self._step_seen = trainer.global_step
        return self._step_seen // self._every > before // self._every
