"""A metric as a line, drawn in SVG, which needs nothing from outside."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 460, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 10, 10, 26
_MAX_POINTS = 400


def line_chart(name: str, series: Sequence[tuple[float, float]], shown: Callable[[float], str]) -> str:
    """An `svg` of one line with its axes.

    Args:
        name: what it shows, for readers who don't see.
        series: steps and values, at least one of them finite; what isn't finite leaves a gap.
        shown: writes a value.
    """
    finite = [(step, value) for step, value in series if math.isfinite(step) and math.isfinite(value)]
    steps, values = zip(*finite, strict=True)
    first, last, low, high = min(steps), max(steps), min(values), max(values)

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        # Halved, so that the difference of two large numbers is one too.
        half = high / 2 - low / 2
        share = (value / 2 - low / 2) / half if half else 0.5  # the half of the least number is 0
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def text(px: float, py: float, anchor: str, what: str) -> str:
        return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{escape(what)}</text>'

    lines = [_path([(x(step), y(value)) for step, value in part]) for part in _parts(_downsampled(series))]
    base = _HEIGHT - _BOTTOM
    labels = [
        text(_LEFT - 6, y(high) + 4, "end", shown(high)),
        text(_LEFT, _HEIGHT - 8, "start", short_number(first)),
        text(_WIDTH - _RIGHT, _HEIGHT - 8, "end", f"step {short_number(last)}"),
    ]
    if high > low:
        labels.append(text(_LEFT - 6, y(low) + 4, "end", shown(low)))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{base}H{_WIDTH - _RIGHT}"/>{"".join(lines)}{"".join(labels)}</svg>'
    )


def short_number(value: float) -> str:
    """Four digits that count; a whole number without a fraction."""
    return f"{value:.0f}" if abs(value) < 1e6 and value == int(value) else f"{value:.4g}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        ((px, py),) = points
        return f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3"/>'
    return f'<path class="line" d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}"/>'


def _downsampled(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Downsample, keeping each bucket's minimum and maximum."""
    if len(series) <= _MAX_POINTS:
        return list(series)
    size = math.ceil(2 * len(series) / _MAX_POINTS)
    kept = []
    for start in range(0, len(series), size):
        bucket = series[start : start + size]
        ends = {min(bucket, key=_value), max(bucket, key=_value)}
        kept += [point for point in bucket if point in ends]
    return kept


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _parts(series: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The stretches of finite points."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in series:
        if all(map(math.isfinite, point)):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
