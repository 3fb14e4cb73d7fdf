"""The progress bar of rich's columns."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from torch import nn

from core_training.monitors.stage_bars import StageBars
from core_training.trainer import Trainer


class ColumnsProgressBar(StageBars):
    """Draws columns of rich, which a subclass chooses, and the metrics after them."""

    progress: Progress | None = None

    def configure_columns(self, trainer: Any) -> list[ProgressColumn]:
        """The columns. Meant to be overridden."""
        return [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Begin to draw, on rank 0."""
        metrics = TextColumn("{task.fields[metrics]}", markup=False)
        self.progress = Progress(
            *self.configure_columns(trainer), metrics, disable=self.is_disabled
        )
        self.progress.start()

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Leave the screen in order."""
        if self.progress is not None:
            self.progress.stop()
        self.progress = None

    def on_exception(self, trainer: Trainer, module: nn.Module, exception: BaseException) -> None:
        """Leave the screen to the traceback."""
        self.teardown(trainer, module, "")

    def make_bar(self, stage: str) -> Any:
        """A line of its own. That of a validation run within training goes when it ends."""
        return _Line(
            self.progress,
            is_left=stage not in ("sanity", "validation") or self.trainer.state.fn != "fit",
        )


class _Line:
    """A line of a rich display, with the methods of tqdm bars."""

    disable = False
    n = 0
    total = None

    def __init__(self, progress: Any, *, is_left: bool) -> None:
        self.progress = progress
        self.is_left = is_left
        self.task = progress.add_task("", total=None, metrics="")

    def reset(self) -> None:
        self.progress.reset(self.task)

    def set_description(self, text: str) -> None:
        self.progress.update(self.task, description=text, total=self.total)

    def set_postfix(self, metrics: dict[str, Any]) -> None:
        self.progress.update(
            self.task, metrics=" ".join(f"{name}: {value}" for name, value in metrics.items())
        )

    def refresh(self) -> None:
        self.progress.update(self.task, completed=self.n)

    def close(self) -> None:
        self.progress.update(self.task, visible=self.is_left)
