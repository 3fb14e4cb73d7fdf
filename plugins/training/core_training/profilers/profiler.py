"""The base of all profilers. Imported when a trainer is given one, and not before."""

from __future__ import annotations

import abc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from core.contract import ConfigurationError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

__all__ = ["Profiler"]

P = ParamSpec("P")
R = TypeVar("R")


class Profiler(abc.ABC):
    """Measures named actions of a run. Meant to be subclassed: `start`, `stop` and `summary` are
    all that is needed.

    A trainer without a profiler has none of this in its steps. One with a profiler wraps its parts
    and all hooks once, when a stage begins:

    1. `setup(stage, ...)`, all ranks: measuring begins anew.
    2. `wrap(action, function)`, all ranks: for the trainer's own actions (`setup_strategy`,
       `fetch_batch`, `transfer_batch`, `run_training_step`, in it `training_step`, `backward` and
       `optimizer_step`; `validation_step`, `save_checkpoint`, `log_metrics`) and for hooks
       (`EarlyStopping.on_train_batch_end`).
    3. `start(action)` and `stop(action)` around each call. Actions nest; they begin and end in one
       thread.
    4. `step()` after each batch with its hooks.
    5. `teardown()`, all ranks, also after an exception: the report is written; rank 0 prints
       `describe()`.

    Args:
        dirpath: folder of the reports; by default the folder of the run's logger, or else
            `default_root_dir`.
        filename: begins their names: `fit-profile.txt`; other ranks add theirs:
            `fit-profile-rank1.txt`.
    """

    stage: str = ""
    rank: int = 0

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str = "profile"
    ) -> None:
        self.dirpath, self.filename, self._folder = dirpath, filename, Path()
        self._clear()

    @abc.abstractmethod
    def start(self, action: str) -> None:
        """The action begins. It may be running already: a hook that calls itself."""

    @abc.abstractmethod
    def stop(self, action: str) -> None:
        """The action that began last under this name ends.

        Raises:
            ConfigurationError: it isn't running.
        """

    @abc.abstractmethod
    def summary(self) -> str:
        """The measurements since `setup`, as text with several lines."""

    def setup(self, stage: str, folder: str | os.PathLike[str], rank: int) -> None:
        """All ranks. A stage begins.

        Args:
            stage: `fit`, `validate`, `test` or `predict`.
            folder: where reports go, unless the user named one.
            rank: number of this process among all.
        """
        self.stage, self.rank = stage, rank
        self._folder = Path(self.dirpath or folder).expanduser()
        self._clear()

    def _clear(self) -> None:
        """Forget all measurements: in a new profiler, and when a stage begins."""

    def wrap(self, action: str, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, measured."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            self.start(action)
            try:
                return function(*args, **kwargs)
            finally:
                self.stop(action)

        return measured

    @contextmanager
    def profile(self, action: str) -> Iterator[None]:
        """Measure a part of your own: `with trainer.profile("augment"):`, which works without a
        profiler too.
        """
        self.start(action)
        try:
            yield
        finally:
            self.stop(action)

    def step(self) -> None:
        """All ranks. A batch and its hooks are over."""

    def teardown(self) -> None:
        """All ranks. The stage is over: write the report."""
        path = self.report_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.summary() + "\n", encoding="utf-8")

    def describe(self) -> str:
        """The text that rank 0 prints after `teardown`."""
        return f"{self.summary()}\nWritten to {self.report_path()}"

    def report_path(self, suffix: str = ".txt") -> Path:
        """The file of this stage and rank whose name ends with `suffix`."""
        rank = f"-rank{self.rank}" if self.rank else ""
        return self._folder / f"{self.stage}-{self.filename}{rank}{suffix}"

    def _refuse_stop(self, action: str) -> ConfigurationError:
        return ConfigurationError(
            f"{type(self).__name__}.stop({action!r}): this action isn't running. Call "
            f"start({action!r}) before, or use `with trainer.profile({action!r}):`."
        )
