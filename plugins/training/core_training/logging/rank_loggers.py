"""The loggers of a running stage: the rank that writes, the run's name on all ranks, and the end of
the run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from core.contract import CoreError, Logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.contract import Strategy


class SilentLogger(Logger):
    """Stands for a logger on the ranks that don't write. It knows what the run is called, and takes
    everything.

    So `self.logger.experiment.add_image(...)` needs no `if`: rank 0 writes, and the others do
    nothing.
    """

    name: str = ""
    version: str | int | None = None
    log_dir: str | None = None

    def __init__(self, name: str, version: str | int | None, log_dir: str | None) -> None:
        self.name, self.version, self.log_dir = name, version, log_dir

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_NOTHING, name)


class _Nothing:
    """A stand-in whose every attribute, call and item is itself again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: object, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass


_NOTHING = _Nothing()


def loggers_of_rank(loggers: Sequence[Logger], strategy: Strategy) -> list[Logger]:
    """All ranks. The loggers on rank 0; elsewhere their silent stand-ins."""
    if strategy.world_size == 1 or not loggers:
        return list(loggers)
    if strategy.is_global_zero:
        strategy.broadcast([(logger.name, logger.version, logger.log_dir) for logger in loggers])
        return list(loggers)
    return [SilentLogger(*names) for names in strategy.broadcast(None)]


def finalize_after(loggers: Sequence[Logger], error: BaseException) -> None:
    """Rank 0. The stage ends by `error`, which no logger's own trouble may hide."""
    status = "failed" if isinstance(error, Exception) else "interrupted"
    for logger in loggers:
        try:
            logger.finalize(status)
        except CoreError as trouble:
            if str(trouble) != str(error):
                logging.getLogger("core").error(
                    "%s could not be finalized: %s", type(logger).__name__, trouble
                )
        except Exception:
            logging.getLogger("core").exception("%s could not be finalized", type(logger).__name__)
