"""The loggers, with Lightning's arguments; those of services belong to packages of their own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.loggers import CSVLogger as CoreCSVLogger

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["CSVLogger", "DummyLogger", "Logger"]


class CSVLogger(CoreCSVLogger):
    """Rows of `metrics.csv` in `lightning_logs/version_n`; see `core.loggers.CSVLogger`."""

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name or "", version, flush_logs_every_n_steps=flush_logs_every_n_steps)
        self._prefix = f"{prefix}-" if prefix else ""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row."""
        super().log_metrics({self._prefix + name: value for name, value in metrics.items()}, step)


class DummyLogger(Logger):
    """A logger that writes nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""


def _service(name: str) -> type:
    """The class of an installed package; else one that says what to install when it is made."""
    try:
        return getattr(import_module("core.loggers"), name)  # type: ignore[no-any-return]
    except ImportError as error:
        advice = str(error)

    class Missing(DummyLogger):
        """The logger of a package that isn't installed: programs import it, and not all of them make one."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise ConfigurationError(advice)

    Missing.__name__ = Missing.__qualname__ = name
    return Missing


def __getattr__(name: str) -> type:
    if name in ("MLFlowLogger", "TensorBoardLogger", "WandbLogger"):
        return _service(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
