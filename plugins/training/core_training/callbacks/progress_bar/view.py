"""A task with its progress, and the views that show it: lines, or bars that are redrawn."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Updates over which the speed is measured.
_SPEED_WINDOW = 30


@dataclass(slots=True)
class ProgressTask:
    """A task that takes many batches.

    Attributes:
        name: as it is shown.
        total: batches; infinite if unknown.
        done: batches so far.
        metrics: the newest values that the user wants to see.
        started_s: when it began, in seconds of the monotonic clock.
    """

    name: str
    total: float
    done: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SPEED_WINDOW))

    def __post_init__(self) -> None:
        self.mark()

    def mark(self) -> None:
        """Measure the speed from here on: time before it went elsewhere."""
        self._samples.clear()
        self._samples.append((time.monotonic(), self.done))

    def advance(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Note a new position."""
        self.done = done
        self.metrics = metrics
        self._samples.append((time.monotonic(), done))

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started_s

    @property
    def batches_per_s(self) -> float:
        """Speed of late; 0 if that isn't known yet."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        if last_s == first_s:
            return 0.0
        return (last - first) / (last_s - first_s)

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go at this speed; None if unknown."""
        speed = self.batches_per_s
        if speed == 0 or self.total == math.inf:
            return None
        return max(0.0, self.total - self.done) / speed


class View:
    """Shows the progress of tasks. One may run inside another, as validation does inside an epoch.
    Meant to be subclassed.

    Attributes:
        interval_s: seconds between two updates, so that showing one is worth its cost.
    """

    interval_s: float

    def begin(self, task: ProgressTask) -> None:
        """Show it from now on."""

    def update(self, task: ProgressTask) -> None:
        """Show its position."""

    def end(self, task: ProgressTask) -> None:
        """Show it no longer."""

    def write(self, line: str, *, is_header: bool = False) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Leave the screen in order. Idempotent."""


class LineView(View):
    """Lines at long intervals, for a file or a log collector."""

    def __init__(self, interval_s: float, write: Callable[[str], None]) -> None:
        self.interval_s = interval_s
        self._write = write

    def update(self, task: ProgressTask) -> None:
        """A line with position, speed, times and metrics."""
        parts = [task.name, *describe(task).values()]
        self._write("  ".join(part for part in parts if part))

    def write(self, line: str, *, is_header: bool = False) -> None:
        """A line that stays."""
        self._write(line)


def describe(task: ProgressTask) -> dict[str, Any]:
    """Position, such as `400/938`, without a known total `400`; speed, such as `12.3 it/s`, slow
    ones as `4.2 s/it`; elapsed and remaining time, such as `1:10 < 0:35`; and metrics.
    """
    position = str(task.done)
    if task.total != math.inf:
        position += f"/{int(task.total)}"
    speed = ""
    if task.batches_per_s >= 1:
        speed = f"{shorten_number(task.batches_per_s)} it/s"
    elif task.batches_per_s > 0:
        speed = f"{shorten_number(1 / task.batches_per_s)} s/it"
    times = format_seconds(task.elapsed_s)
    if task.remaining_s is not None:
        times += f" < {format_seconds(task.remaining_s)}"
    metrics = format_metrics(task.metrics)
    return {"position": position, "speed": speed, "times": times, "metrics": metrics}


def format_seconds(seconds: float) -> str:
    """Such as `1:02:03`, or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_metrics(metrics: Mapping[str, object]) -> str:
    """Such as `loss 0.1234  val_loss 0.0912`."""
    return "  ".join(f"{name} {format_value(value)}" for name, value in metrics.items())


def format_value(value: Any) -> str:
    """Four digits that count; a whole number without a fraction. A text stays as it is."""
    if isinstance(value, str):
        return value
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:#.4g}".rstrip(".")


def shorten_number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
