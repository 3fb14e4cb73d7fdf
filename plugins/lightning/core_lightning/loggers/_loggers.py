"""The loggers, with Lightning's arguments; those of services belong to packages of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from core import ConfigurationError, Logger
from core.loggers import CSVLogger as CoreCSVLogger
from core_lightning.decisions.stand_ins import refusing

_CORES: Any = object
"""Core's class of a logger, for those that stand before it."""


class Prefixes(_CORES):  # type: ignore[misc]
    """For loggers with a `prefix`, which stands before the name of each metric with a hyphen.
    Precedes core's class.
    """

    LOGGER_JOIN_CHAR = "-"
    group_separator = "/"
    _prefix = ""

    def prefixed(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics under their full names."""
        if not self._prefix:
            return dict(metrics)
        start = f"{self._prefix}{self.LOGGER_JOIN_CHAR}"
        return {f"{start}{name}": value for name, value in metrics.items()}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics."""
        super().log_metrics(self.prefixed(metrics), step)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Do nothing: Lightning's loggers draw a graph only if they are asked to when they are
        made.
        """


class CSVLogger(Prefixes, CoreCSVLogger):
    """Rows of `metrics.csv` in `lightning_logs/version_n`; see `core.loggers.CSVLogger`."""

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(
            save_dir, name or "", version, flush_logs_every_n_steps=flush_logs_every_n_steps
        )
        self._prefix = prefix

    @property
    def experiment(self) -> SimpleNamespace:
        """The writer, by which programs log on their own, under the metrics' own names."""
        return SimpleNamespace(
            log_dir=self.log_dir,
            log_metrics=lambda metrics_dict, step=None: CoreCSVLogger.log_metrics(
                self, metrics_dict, step or 0
            ),
            log_hparams=self.log_hyperparams,
            save=self.save,
        )


def save_after_logs(logger: Logger) -> None:
    """Main process. Make a program's own logger save after each record, as Lightning's Trainer
    does.
    """
    kind = type(logger)
    if (
        kind.save is not Logger.save
        and kind.__module__.partition("_")[0].partition(".")[0] != "core"
    ):
        vars(logger)["log_metrics"] = partial(_log_and_save, logger)


def _log_and_save(logger: Logger, metrics: Mapping[str, float], step: int) -> None:
    type(logger).log_metrics(logger, metrics, step)
    logger.save()


def default_logger(save_dir: str | os.PathLike[str]) -> Logger:
    """TensorBoard's where it and core-tensorboard are installed, else rows of a CSV file."""
    kind: Any = __getattr__("TensorBoardLogger")
    if find_spec("tensorboard") is None or issubclass(kind, DummyLogger):
        kind = CSVLogger
    return kind(save_dir)  # type: ignore[no-any-return]


class DummyLogger(Logger):
    """A logger that writes nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""


class MissingPackageError(ConfigurationError, ModuleNotFoundError):
    """The package of a logger isn't installed. Programs that go on without it catch the second
    class.
    """


def _of_service(name: str) -> type:
    """The class of an installed package; else one that says what to install when it is made."""
    try:
        return getattr(import_module("core.loggers"), name)  # type: ignore[no-any-return]
    except ImportError as error:
        return refusing(name, __name__, str(error), DummyLogger, MissingPackageError)


_SERVICES = ("CometLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger")


@cache
def __getattr__(name: str) -> type:
    """The class of a service: core's, with Lightning's arguments and methods before it."""
    if name not in _SERVICES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = _of_service(name)
    if issubclass(base, DummyLogger):
        return base
    form = getattr(import_module("core_lightning.loggers.service_loggers"), name)
    return type(name, (form, base), {"__doc__": form.__doc__, "__module__": __name__})
