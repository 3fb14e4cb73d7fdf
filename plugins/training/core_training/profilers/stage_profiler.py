"""The base of the profilers: measurements that begin anew with each stage."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_training.profilers.profiler import Profiler

if TYPE_CHECKING:
    import os


class StageProfiler(Profiler):
    """Forgets a stage's measurements when the next one begins. Meant to be subclassed."""

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str = "profile"
    ) -> None:
        super().__init__(dirpath, filename)
        self._clear()

    @abc.abstractmethod
    def _clear(self) -> None:
        """Begin anew, in a new profiler and at each stage."""

    def setup(self, stage: str, folder: str | os.PathLike[str], rank: int) -> None:
        """All ranks. A stage begins."""
        super().setup(stage, folder, rank)
        self._clear()

    def _refuse_stop(self, action: str) -> ConfigurationError:
        return ConfigurationError(
            f"{type(self).__name__}.stop({action!r}): this action isn't running. Call "
            f"start({action!r}) before, or use `with trainer.profile({action!r}):`."
        )
