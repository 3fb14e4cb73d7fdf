"""Acts of rank 0 alone: warnings that are shown once, messages, and a logger's experiment."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from core import rank_zero_only
from core import rank_zero_warn as warn_at


class PossibleUserWarning(UserWarning):
    """A category that programs filter warnings by; no warning of core has it."""


class LightningDeprecationWarning(DeprecationWarning):
    """The category of `rank_zero_deprecation`."""


_log = logging.getLogger("lightning.fabric.utilities.rank_zero")
_logger = logging.getLogger("lightning.pytorch")


def _show(logger: logging.Logger) -> None:
    """Show a logger's messages, unless the program has chosen where they go."""
    logger.setLevel(logging.INFO)
    if not logging.getLogger().hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.propagate = False


_show(logging.getLogger("lightning.fabric"))
_show(_logger)


@rank_zero_only
def rank_zero_info(*args: Any, stacklevel: int = 4, **options: Any) -> None:
    """Rank 0. Log at level INFO, which is shown."""
    _log.info(*args, stacklevel=stacklevel, **options)


def rank_zero_warn(message: Warning | str, stacklevel: int = 4, **options: Any) -> None:
    """Rank 0. Warn; 4 is the line that calls this."""
    warn_at(message, stacklevel=max(stacklevel - 2, 1), **options)


def rank_zero_deprecation(message: Warning | str, stacklevel: int = 5, **options: Any) -> None:
    """Rank 0. Warn of something deprecated; 5 is the line that calls this."""
    warn_at(
        message,
        stacklevel=max(stacklevel - 3, 1),
        **{"category": LightningDeprecationWarning, **options},
    )


class WarningCache(set[str]):
    """Warnings that were shown, each of which is shown once."""

    def warn(self, message: str, stacklevel: int = 2, **options: Any) -> None:
        """Rank 0. Warn, unless that was done."""
        if message not in self:
            self.add(message)
            warn_at(message, stacklevel=stacklevel + 1, **options)

    def info(self, message: str, **_: Any) -> None:
        """Rank 0. Log, unless that was done."""
        if message not in self:
            self.add(message)
            rank_zero_info(message)


def disable_possible_user_warnings(module: str = "") -> None:
    """Ignore warnings of the category `PossibleUserWarning`, of a module or of all."""
    warnings.filterwarnings("ignore", module=module, category=PossibleUserWarning)


@rank_zero_only
def rank_zero_debug(*args: Any, **_: Any) -> None:
    """Rank 0. Log at level DEBUG."""
    logging.getLogger("core").debug(*args)


def rank_prefixed_message(message: str, rank: int | None) -> str:
    """A message with the rank before it, if there is one."""
    if rank is None:
        return message
    return f"[rank: {rank}] {message}"


class _Ignored:
    """An object of which any method can be called, and does nothing."""

    def __setitem__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self.__setitem__

    def __getitem__(self, index: int) -> _Ignored:
        return self


def rank_zero_experiment(function: Callable[..., Any]) -> Callable[..., Any]:
    """A logger's `experiment` on rank 0; on others an object whose methods do nothing."""

    @functools.wraps(function)
    def experiment(self: Any) -> Any:
        made = rank_zero_only(function)(self)
        if made is None:
            return _Ignored()
        return made

    return experiment


def cli_lightning_logo() -> None:
    """Print which program runs in Lightning's place, in the line where its logo would stand."""
    sys.stdout.write("core-lightning: this program runs on core.\n")
