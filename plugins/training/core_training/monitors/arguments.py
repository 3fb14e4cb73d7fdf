"""The check that the monitors share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from core_training.trainer import Trainer


def require_logger(who: str, trainer: Trainer) -> None:
    """Refuse to measure without a logger.

    Raises:
        ConfigurationError: the trainer has no logger.
    """
    if not trainer.loggers:
        raise ConfigurationError(
            f"{who} has nowhere to log to: the trainer has no logger. Pass Trainer(logger=True), "
            "or leave it out."
        )
