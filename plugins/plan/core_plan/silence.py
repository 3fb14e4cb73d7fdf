"""The program's loggers and callbacks without those that write or stop: nothing of a plan or
comparison stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Callback, Logger

if TYPE_CHECKING:
    from collections.abc import Mapping


class DiscardingLogger(Logger):
    """A logger that takes everything and writes nothing, for callbacks that need one, and for
    `logger.experiment`.
    """

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TAKES_ANYTHING


class _TakesAnything:
    """Its attributes, calls and items are itself again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def __getitem__(self, key: object) -> Any:
        return self


_TAKES_ANYTHING = _TakesAnything()


def silent_loggers(given: Any) -> list[Logger]:
    """As many loggers as a Trainer or Fabric was given, and at least one."""
    several = isinstance(given, list | tuple) and len(given) > 1
    return [DiscardingLogger() for _ in given] if several else [DiscardingLogger()]


def kept_callbacks(given: Any) -> list[Any]:
    """The callbacks that neither write, stop nor draw."""
    callbacks = [given] if isinstance(given, str | Callback) else list(given or ())
    return [callback for callback in callbacks if not _is_dropped(callback)]


def _is_dropped(callback: Any) -> bool:
    return getattr(callback, "leaves_traces", False) or getattr(callback, "found_as", "") in (
        "progress_bar_callback",
        "checkpoint_callback",
    )
