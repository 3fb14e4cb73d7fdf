"""The callbacks and loggers that a trainer has if the user says nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from core.callbacks import Callback, ModelCheckpoint, ProgressBar
from core.contract import ConfigurationError, Logger

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def make_callbacks(
    callbacks: Callback | Sequence[Callback] | None, enable_progress_bar: bool, enable_checkpointing: bool
) -> list[Callback]:
    """The user's callbacks, a progress bar and a checkpoint at the end unless there are some already.

    Raises:
        ConfigurationError: not a callback; two with one state key; a callback of a kind that was switched off.
    """
    chosen = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    for callback in chosen:
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"callbacks has {callback!r}; expected instances of core.callbacks.Callback.")
    _add_default(chosen, ProgressBar, enable_progress_bar, "enable_progress_bar")
    _add_default(chosen, ModelCheckpoint, enable_checkpointing, "enable_checkpointing")
    keys = [callback.state_key for callback in chosen]
    if duplicates := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigurationError(
            f"Two callbacks have the state key {duplicates[0]!r}, so their states can't be told apart in a checkpoint. "
            "Override state_key in one of them."
        )
    return chosen


def _add_default(chosen: list[Callback], kind: type[Callback], enabled: bool, argument: str) -> None:
    present = any(isinstance(callback, kind) for callback in chosen)
    if present and not enabled:
        raise ConfigurationError(f"{argument}=False, and callbacks has a {kind.__name__}. Leave one of them out.")
    if enabled and not present:
        chosen.append(kind())


def make_loggers(logger: Logger | Iterable[Logger] | bool | None, root: PathLike | None) -> list[Logger]:
    """The user's loggers; for True the CSV logger.

    Raises:
        ConfigurationError: not a logger.
    """
    if logger is None or logger is False:
        return []
    if logger is True:
        from core.loggers import CSVLogger

        return [CSVLogger(root or ".")]
    loggers: list[Any] = [logger] if isinstance(logger, Logger) else list(logger)
    for item in loggers:
        if not isinstance(item, Logger):
            raise ConfigurationError(f"logger has {item!r}; expected instances of core.Logger, True or False.")
    return loggers
