"""Checks of arguments that several callbacks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from core.trainer.views.trainer_views import TrainerViews


def check_mode(who: str, mode: str) -> None:
    """Refuse a direction that isn't one.

    Raises:
        ConfigurationError: it is neither `"min"` nor `"max"`.
    """
    if mode not in ("min", "max"):
        raise ConfigurationError(f"{who}(mode={mode!r}): expected 'min' if less is better, or 'max' if more is.")


def check_int(who: str, name: str, value: Any, *, least: int, meaning: str) -> None:
    """Refuse what isn't a whole number of at least so much.

    Args:
        who: the callback.
        name: of the argument.
        value: what the user gave.
        least: smallest good value.
        meaning: what the message says that it expected.

    Raises:
        ConfigurationError: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{who}({name}={value!r}): expected {meaning}.")


def require_logger(who: str, trainer: TrainerViews) -> None:
    """Refuse to measure without a logger.

    Raises:
        ConfigurationError: the trainer has no logger.
    """
    if not trainer.loggers:
        raise ConfigurationError(
            f"{who} has nowhere to log to: the trainer has no logger. Pass Trainer(logger=True), or leave it out."
        )
