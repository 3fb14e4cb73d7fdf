"""Where metrics go."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Logger(abc.ABC):
    """Receives metrics and hyperparameters. Meant to be subclassed; `log_metrics` is all that is needed.

    Every method is called on rank 0 only. A logger opens its files or connections at the first call, not when it is
    made, so that it can be pickled and costs nothing where it isn't used.
    """

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return type(self).__name__

    @property
    def version(self) -> str | int | None:
        """Tells one run of the experiment from the others."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of this run, if the logger writes to a local one. Checkpoints go there by default."""
        return None

    @abc.abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars.

        Args:
            metrics: value by name.
            step: number of optimizer steps so far.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record the options of the run, once."""

    def save(self) -> None:
        """Flush what is buffered."""

    def finalize(self, status: str) -> None:
        """The run is over. `status`: `"success"`, `"failed"` or `"interrupted"`."""
