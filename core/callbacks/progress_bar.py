"""How far training has come, on rank 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from core.callbacks.callback import Callback

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from torch import nn

_REFRESH_S = 0.1


class ProgressBar(Callback):
    """A bar for each epoch with speed, remaining time and metrics; a line for each epoch where there is no terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._is_terminal = False
        self._drawn_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None, "_task": None}

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Open the bar, on rank 0 alone."""
        if not trainer.is_global_zero:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=False)
        self._is_terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console,
            auto_refresh=False,
            disable=not self._is_terminal,
        )
        self._bar.start()

    def on_train_epoch_start(self, trainer: Any, module: nn.Module) -> None:
        """Begin a new bar."""
        if self._bar is not None:
            total = trainer.loaders.num_train_batches
            self._task = self._bar.add_task(
                f"Epoch {trainer.current_epoch}", total=None if total == float("inf") else total, metrics=""
            )

    def on_train_batch_end(self, trainer: Any, module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Draw at most ten times a second: metrics are read, and so waited for, only then."""
        if self._bar is None or time.monotonic() - self._drawn_s < _REFRESH_S:
            return
        self._draw(trainer)

    def on_train_epoch_end(self, trainer: Any, module: nn.Module) -> None:
        """Finish the bar; without a terminal, print its line."""
        if self._bar is None:
            return
        self._draw(trainer)
        if not self._is_terminal:
            done = f"Epoch {trainer.current_epoch}: {trainer.progress.batch} batches"
            trainer.print("  ".join([done, self._metrics(trainer)]).rstrip())

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """Close the bar, so that the traceback stands below it."""
        self._close()

    def _draw(self, trainer: Any) -> None:
        if self._bar is not None and self._task is not None and self._is_terminal:
            self._bar.update(self._task, completed=trainer.progress.batch, metrics=self._metrics(trainer), refresh=True)
        self._drawn_s = time.monotonic()

    def _metrics(self, trainer: Any) -> str:
        return "  ".join(f"{name}: {value:.4g}" for name, value in trainer.progress_bar_metrics.items())

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
