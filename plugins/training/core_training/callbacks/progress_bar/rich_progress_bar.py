"""The default progress bar."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from core_training.callbacks.progress_bar.base import ProgressBar
from core_training.callbacks.progress_bar.epoch_table import EpochTable
from core_training.callbacks.progress_bar.terminal import can_redraw, find_console
from core_training.callbacks.progress_bar.view import LineView, ProgressTask, View, format_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from torch import nn

    from core_training.views.trainer_views import TrainerViews

_NAMES: dict[str | None, str] = {
    "fit": "Validation",
    "validate": "Validation",
    "test": "Test",
    "predict": "Prediction",
}


class RichProgressBar(ProgressBar):
    """A bar for the running epoch, validation, test or prediction, and a table with a row for each
    epoch, on rank 0.

    On a terminal it is drawn under whatever else is printed, in a notebook above it, by rich.
    Elsewhere, and in a notebook's forked ranks, the table is plain text, with a line in between
    when an epoch takes long. Metrics are read, and the device waited for, only when something is
    drawn.
    """

    def __init__(
        self,
        *,
        refresh_interval_s: float = 0.1,
        line_interval_s: float = 30.0,
        leave: bool = True,
        console: Console | None = None,
    ) -> None:
        """Create the callback.

        Args:
            refresh_interval_s: redraw the bar at most so often.
            line_interval_s: where nothing can be redrawn, write a line so often within an epoch.
            leave: write the row of each epoch.
            console: draw here rather than on standard output.
        """
        self.refresh_interval_s = refresh_interval_s
        self.line_interval_s = line_interval_s
        self.leave = leave
        self._console = console
        self._forget()

    def _forget(self) -> None:
        self._view: View | None = None
        self._tasks: list[ProgressTask] = []
        self._due_s = float("inf")
        self._paused_s = 0.0
        self._first_batch = 0
        self._table = EpochTable()

    def __getstate__(self) -> dict[str, Any]:
        # A console and a view hold files and threads, which another process has of its own.
        return {
            "refresh_interval_s": self.refresh_interval_s,
            "line_interval_s": self.line_interval_s,
            "leave": self.leave,
            "is_enabled": self.is_enabled,
            "_console": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # hooks ----------------------------------------------------------------------------------------

    def setup(self, trainer: TrainerViews, module: nn.Module, stage: str) -> None:
        """Find out where to draw, on rank 0 alone."""
        self._forget()
        if trainer.is_global_zero and self.is_enabled:
            self._view = self._make_view()

    def on_train_epoch_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Show the epoch."""
        self._begin_epoch(trainer)

    def on_train_batch_end(
        self, trainer: TrainerViews, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draw, if it is time."""
        if time.monotonic() >= self._due_s:
            self._draw(trainer.progress.batch, self.get_metrics(trainer, module))

    def on_train_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Show the epoch that goes on, when training was resumed within one."""
        if trainer.progress.batch > 0:
            self._begin_epoch(trainer)

    def on_train_epoch_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Write the epoch's row."""
        if self._view is None or not self._tasks:
            return
        task = self._tasks[-1]
        task.advance(trainer.progress.batch, self.get_metrics(trainer, module))
        seconds = task.elapsed_s
        self._end()
        if self.leave:
            # Without the validation runs in between, which took no batch of training.
            training_s = max(seconds - self._paused_s, 1e-9)
            self._table.add(
                self._view.write,
                epoch=trainer.current_epoch,
                step=trainer.global_step,
                seconds=seconds,
                batches_per_s=(task.done - self._first_batch) / training_s,
                metrics=task.metrics,
            )

    def on_validation_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Show the run, inside the epoch if there is one."""
        name = _NAMES[trainer.stage]
        if trainer.sanity_checking:
            name = "Sanity check"
        counts = self._count_evaluated(trainer)
        known = 0
        self._batches_before = []
        for count in counts:
            self._batches_before.append(known)
            if count != float("inf"):
                known += int(count)
        self._begin(ProgressTask(name, sum(counts)))

    on_test_start = on_predict_start = on_validation_start

    def on_validation_batch_end(
        self,
        trainer: TrainerViews,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw, if it is time."""
        if time.monotonic() >= self._due_s:
            # its metrics are complete at its end
            self._draw(self._batches_before[dataloader_idx] + batch_idx + 1, {})

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Return to the epoch's bar, and measure its speed anew; or print the results."""
        took_s = self._end()
        if not trainer.sanity_checking:
            self._paused_s += took_s
        if self._view is None or trainer.stage not in ("validate", "test"):
            return
        shown = trainer.metrics.names()
        values = {
            key: float(value) for key, value in trainer.callback_metrics.items() if key in shown
        }
        if values and trainer.prints_results:
            self._view.write(f"{_NAMES[trainer.stage]}: {format_metrics(values)}")

    on_test_end = on_predict_end = on_validation_end

    def on_exception(
        self, trainer: TrainerViews, module: nn.Module, exception: BaseException
    ) -> None:
        """Remove the bars, so that the traceback stands below everything."""
        self._close()

    def teardown(self, trainer: TrainerViews, module: nn.Module, stage: str) -> None:
        """Leave the screen in order."""
        self._close()

    # drawing --------------------------------------------------------------------------------------

    def _make_view(self) -> View:
        console = self._console or find_console()
        if console is None:
            return LineView(self.line_interval_s, lambda line: print(line, flush=True))  # noqa: T201  # this is the output
        if not can_redraw(console):
            return LineView(
                self.line_interval_s,
                lambda line: console.print(line, markup=False, highlight=False),
            )
        if console.is_jupyter:
            from core_training.callbacks.progress_bar.notebook_view import NotebookView

            return NotebookView(console, self.refresh_interval_s)
        from core_training.callbacks.progress_bar.live_view import LiveView

        return LiveView(console, self.refresh_interval_s)

    def _begin_epoch(self, trainer: TrainerViews) -> None:
        name = f"Epoch {trainer.current_epoch}"
        if trainer.options.max_epochs is not None:
            name += f"/{trainer.options.max_epochs - 1}"
        self._paused_s = 0.0
        self._first_batch = trainer.progress.batch
        self._begin(ProgressTask(name, trainer.loaders.num_train_batches, self._first_batch))

    def _begin(self, task: ProgressTask) -> None:
        if self._view is not None:
            self._tasks.append(task)
            self._view.begin(task)
            self._due_s = time.monotonic() + self._view.interval_s

    def _draw(self, done: int, metrics: Mapping[str, object]) -> None:
        assert self._view is not None
        task = self._tasks[-1]
        task.advance(done, metrics)
        self._view.update(task)
        self._due_s = time.monotonic() + self._view.interval_s

    def _end(self) -> float:
        """The innermost task is over; seconds that it took."""
        if self._view is None or not self._tasks:
            return 0.0
        task = self._tasks.pop()
        self._view.end(task)
        if self._tasks:
            self._tasks[-1].mark()
            self._due_s = time.monotonic() + self._view.interval_s
        else:
            self._due_s = float("inf")
        return task.elapsed_s

    def _close(self) -> None:
        if self._view is not None:
            self._view.close()
        self._forget()
