"""The loggers of Fabric, whose first argument is `root_dir`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from core_lightning import _loggers as loggers

if TYPE_CHECKING:
    import os


class CSVLogger(loggers.CSVLogger):
    """Rows of `metrics.csv` in `lightning_logs/version_n`; see `core.loggers.CSVLogger`.

    Args:
        root_dir: holds the experiments.
        name: of the experiment, a folder in `root_dir`; None or empty for none.
        version: of this run.
        prefix: stands before the name of each metric, with a hyphen.
        flush_logs_every_n_steps: rows that are kept before they are written.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix, flush_logs_every_n_steps)


@cache
def _tensorboard() -> type:
    base: Any = loggers.TensorBoardLogger

    class TensorBoardLogger(base):  # type: ignore[misc]
        """Event files in `lightning_logs/version_n`; see `TensorBoardLogger` of the Trainer's loggers.

        Args:
            root_dir: holds the experiments.
            options: all others.
        """

        def __init__(
            self, root_dir: str | os.PathLike[str] = ".", name: str | None = "lightning_logs", **options: Any
        ) -> None:
            super().__init__(root_dir, name, **options)

    return TensorBoardLogger


def __getattr__(name: str) -> type:
    if name == "TensorBoardLogger":
        return _tensorboard()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
