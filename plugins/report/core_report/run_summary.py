"""The answers that a reader of a run wants first: how it went, how long it took, where it stands,
its best values.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from core.cli import size_text
from core_report.chart import short_number

if TYPE_CHECKING:
    from core_report.run_record import RunRecord, Series

_LESS_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae")
_MORE_IS_BETTER = ("acc", "f1", "auc", "auroc", "bleu", "precision", "recall", "score")
APART = {
    "throughput/": "Throughput",
    "device/": "Memory and device",
    "goodput/": "Goodput so far",
    "stragglers/": "Slowest rank",
}
"""Beginnings of the names of metrics that aren't results, and the headings of their charts."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric.

    Attributes:
        name: of the metric.
        mode: `"min"` or `"max"`.
        value: the best, of those that are finite.
        step: at which it was logged.
        last: the newest value.
    """

    name: str
    mode: str
    value: float
    step: float
    last: float


def outcome_of(run: RunRecord) -> tuple[str, str]:
    """The outcome in a word or two, and the reason; both empty if the folder doesn't tell."""
    outcome, reason = (str(run.facts.get(name) or "") for name in ("outcome", "reason"))
    if outcome != "running":
        return outcome, reason
    quiet_s = time.time() - run.changed_at_s
    return (
        "no end recorded",
        f"It is still running, or was killed. Its files were written last {_ago(quiet_s)}.",
    )


def duration_of(run: RunRecord) -> str:
    """Such as `2 min 5 s`; empty if the folder doesn't tell."""
    return (
        duration_text(seconds)
        if (seconds := _number(run.facts.get("duration_s"))) is not None
        else ""
    )


def position_of(run: RunRecord) -> str:
    """Epochs and steps, such as `3 of 5 epochs, 1,200 steps`."""
    steps = [series[-1][0] for series in run.metrics.values()]
    step = _number(run.facts.get("step"))
    step = max(steps) if step is None and steps else step
    epoch, limit = (_number(run.facts.get(name)) for name in ("epoch", "max_epochs"))
    epochs = ""
    if epoch is not None:
        epochs = (
            f"{epoch:,.0f} of {limit:,.0f} epochs"
            if limit and limit > 0
            else f"{epoch:,.0f} epochs"
        )
    elif series := run.metrics.get("epoch"):
        epochs = f"in epoch {series[-1][1]:,.0f}"
    return ", ".join(
        part for part in (epochs, "" if step is None else f"{step:,.0f} steps") if part
    )


def speed_of(run: RunRecord) -> str:
    """Samples a second as the ThroughputMonitor measured them, at the median; else optimizer steps
    a second.
    """
    for name in ("throughput/tokens_per_s", "throughput/samples_per_s"):
        if values := [value for _, value in run.metrics.get(name, ()) if math.isfinite(value)]:
            return f"{rate_text(median(values))} {name.split('/')[1].removesuffix('_per_s')}/s"
    step, seconds = (_number(run.facts.get(name)) for name in ("step", "training_s"))
    return f"{rate_text(step / seconds)} steps/s" if step and seconds else ""


def memory_of(run: RunRecord) -> str:
    """The greatest memory that is known of rank 0's device, or of its process; what core-plan has
    planned beside it.
    """
    stats = run.facts.get("memory")
    found = {name: [value] for name, value in stats.items()} if isinstance(stats, dict) else {}
    for name, series in run.metrics.items():
        if name.startswith("device/"):
            found.setdefault(name.removeprefix("device/"), []).extend(value for _, value in series)
    for name in sorted(found, key=lambda name: ("reserved" in name, name)):
        values = [number for value in found[name] if (number := _number(value)) is not None]
        if "peak" in name and name.endswith("_bytes") and values:
            planned = [value for _, value in run.metrics.get("device/planned_bytes", ())]
            return size_text(max(values)) + (
                f", planned {size_text(planned[-1])}" if planned else ""
            )
    return ""


def best_of(run: RunRecord) -> dict[str, Best]:
    """The best value of each metric that callbacks have judged by; else of those whose names tell
    what is better.
    """
    monitored = run.facts.get("monitored")
    if not isinstance(monitored, list):
        monitored = []
    goals = {
        str(entry[0]): str(entry[1])
        for entry in monitored
        if isinstance(entry, list) and len(entry) == 2 and entry[0] in run.metrics
    }
    guessed = {name: mode for name in run.metrics if (mode := _guess(name))}
    goals = goals | {name: mode for name, mode in guessed.items() if name not in goals}
    return {name: _best(name, mode, run.metrics[name]) for name, mode in goals.items()}


def settings_of(run: RunRecord) -> dict[str, Any]:
    """Hyperparameters, and what was decided, by name: what may differ from run to run."""
    decisions = run.facts.get("decisions")
    rows = (
        [row for row in decisions if isinstance(row, dict)] if isinstance(decisions, list) else []
    )
    versions = run.facts.get("versions")
    return {
        **run.hparams,
        **{str(row.get("subject")): row.get("choice") for row in rows},
        **(
            {f"{name} (version)": text for name, text in versions.items()}
            if isinstance(versions, dict)
            else {}
        ),
    }


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """The names of settings that aren't the same in all runs."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]


def duration_text(seconds: float) -> str:
    """Such as `0.4 s`, `2 min 5 s`, `3 h 12 min` or `2 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for large, small, size, part in (
        ("d", "h", 86400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if seconds >= size:
            return f"{seconds // size:.0f} {large} {seconds % size // part:.0f} {small}"
    raise AssertionError


def rate_text(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else short_number(float(f"{value:.3g}"))


def _ago(seconds: float) -> str:
    return f"{duration_text(max(seconds, 0.0))} ago"


def _number(value: Any) -> float | None:
    is_number = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    )
    return float(value) if is_number else None


def _guess(name: str) -> Literal["min", "max"] | None:
    if name.startswith(tuple(APART)):
        return None
    words = name.lower()
    if any(word in words for word in _LESS_IS_BETTER):
        return "min"
    return "max" if any(word in words for word in _MORE_IS_BETTER) else None


def _best(name: str, mode: str, series: Series) -> Best:
    finite = [point for point in series if math.isfinite(point[1])]
    step, value = (min if mode == "min" else max)(finite, key=lambda point: point[1])
    return Best(name, mode, value, step, series[-1][1])
