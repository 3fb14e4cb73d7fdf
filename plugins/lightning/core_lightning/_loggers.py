"""The loggers, with Lightning's arguments; those of services belong to packages of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.loggers import CSVLogger as CoreCSVLogger

if TYPE_CHECKING:
    import os


class Prefixes:
    """For loggers whose metrics' names begin with a prefix and a hyphen. Stands before core's class."""

    LOGGER_JOIN_CHAR = "-"
    group_separator = "/"
    _prefix = ""

    def prefixed(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics under their full names."""
        start = f"{self._prefix}{self.LOGGER_JOIN_CHAR}" if self._prefix else ""
        return {f"{start}{name}": value for name, value in metrics.items()}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics."""
        super().log_metrics(self.prefixed(metrics), step)  # type: ignore[misc]  # of the other base

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Do nothing: Lightning's loggers draw a graph only if they are asked to when they are made."""


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
        super().__init__(save_dir, name or "", version, flush_logs_every_n_steps=flush_logs_every_n_steps)
        self._prefix = prefix

    @property
    def experiment(self) -> CSVExperiment:
        """The writer, by which programs log on their own."""
        return CSVExperiment(self)


class CSVExperiment:
    """The methods of Lightning's CSV writer.

    Args:
        logger: writes.
    """

    def __init__(self, logger: CSVLogger) -> None:
        self._logger, self.log_dir = logger, logger.log_dir

    def log_metrics(self, metrics_dict: Mapping[str, float], step: int | None = None) -> None:
        """Record metrics, under their own names."""
        CoreCSVLogger.log_metrics(self._logger, metrics_dict, step or 0)

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """Record hyperparameters."""
        self._logger.log_hyperparams(params)

    def save(self) -> None:
        """Write what is kept."""
        self._logger.save()


def save_after_logs(logger: Logger) -> None:
    """Main process. Make a program's own logger save after each record, as Lightning's Trainer does."""
    kind = type(logger)
    if kind.save is not Logger.save and kind.__module__.partition("_")[0].partition(".")[0] != "core":
        vars(logger)["log_metrics"] = partial(_log_and_save, logger)


def _log_and_save(logger: Logger, metrics: Mapping[str, float], step: int) -> None:
    type(logger).log_metrics(logger, metrics, step)
    logger.save()


def default_logger(save_dir: str | os.PathLike[str]) -> Logger:
    """TensorBoard's where it and core-tensorboard are installed, else rows of a CSV file."""
    kind: Any = _made("TensorBoardLogger")
    if find_spec("tensorboard") is None or issubclass(kind, DummyLogger):
        kind = CSVLogger
    return kind(save_dir)  # type: ignore[no-any-return]


class DummyLogger(Logger):
    """A logger that writes nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""


class MissingPackageError(ConfigurationError, ModuleNotFoundError):
    """The package of a logger isn't installed. Programs that go on without it catch the second class."""


def _of_service(name: str) -> type:
    """The class of an installed package; else one that says what to install when it is made."""
    try:
        return getattr(import_module("core.loggers"), name)  # type: ignore[no-any-return]
    except ImportError as error:
        advice = str(error)

    class Missing(DummyLogger):
        """The logger of a package that isn't installed: programs import it, and not all of them make one."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise MissingPackageError(advice)

    Missing.__name__ = Missing.__qualname__ = name
    return Missing


def _tensorboard() -> type:
    base: Any = _of_service("TensorBoardLogger")
    if issubclass(base, DummyLogger):
        return base  # type: ignore[no-any-return]

    class TensorBoardLogger(Prefixes, base):  # type: ignore[misc]
        """Event files in `lightning_logs/version_n`; see core-tensorboard.

        Args:
            save_dir: holds the experiments.
            name: of the experiment, a folder in `save_dir`; None or empty for none.
            version: of this run.
            log_graph: must be False: the graph can be added by `logger.experiment.add_graph`.
            default_hp_metric: record `hp_metric` with hyperparameters that come without metrics.
            prefix: stands before the name of each metric, with a hyphen.
            sub_dir: of the run's folder; must be None.
            options: go to `torch.utils.tensorboard.SummaryWriter`.

        Raises:
            ConfigurationError: an argument asks for something that isn't there.
            MissingPackageError: the package tensorboard is not installed.
        """

        def __init__(
            self,
            save_dir: str | os.PathLike[str] = ".",
            name: str | None = "lightning_logs",
            version: int | str | None = None,
            log_graph: bool = False,
            default_hp_metric: bool = True,
            prefix: str = "",
            sub_dir: str | os.PathLike[str] | None = None,
            **options: Any,
        ) -> None:
            if log_graph or sub_dir is not None:
                raise ConfigurationError(
                    "TensorBoardLogger can't take log_graph=True or sub_dir=. Add the graph yourself, by "
                    "logger.experiment.add_graph(module, example), and name a save_dir or version instead of a sub_dir."
                )
            if find_spec("tensorboard") is None:
                raise MissingPackageError("TensorBoardLogger needs tensorboard: `pip install tensorboard`.")
            super().__init__(save_dir, name or "", version, **options)
            self._prefix, self._default_hp_metric = prefix, default_hp_metric

        def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
            """Record options, and the metrics that tell runs with others apart.

            Args:
                params: the options.
                metrics: by name; a number is that of `hp_metric`, and None is -1 unless `default_hp_metric` is False.
                step: of the metrics.
            """
            super().log_hyperparams(params)
            if metrics is None and self._default_hp_metric:
                metrics = -1
            if metrics is not None:
                named = metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics}
                self.log_metrics(named, step or 0)

    return TensorBoardLogger


_SERVICES = {"CometLogger": "comet_logger", "MLFlowLogger": "mlflow_logger", "WandbLogger": "wandb_logger"}


@cache
def _made(name: str) -> type:
    if name == "TensorBoardLogger":
        return _tensorboard()
    base = _of_service(name)
    if issubclass(base, DummyLogger):
        return base
    make = getattr(import_module("core_lightning.service_loggers"), _SERVICES[name])
    return make(base)  # type: ignore[no-any-return]


def __getattr__(name: str) -> type:
    if name == "TensorBoardLogger" or name in _SERVICES:
        return _made(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
