"""Metrics as lines over steps, drawn in SVG, which needs nothing from outside."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WIDTH, _HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 10, 26
_MAX_POINTS = 400
_MAX_DOTS = 20
_NUM_TICKS = 5
_NUM_COLOURS = 8


def line_chart(
    name: str,
    lines: Mapping[int, Sequence[tuple[float, float]]],
    shown: Callable[[float], str],
    base: int = 10,
) -> str:
    """An `svg` of lines with axes and a grid.

    Args:
        name: what it shows, for readers who don't see.
        lines: steps and values by the number of their colour; at least one value is finite, and
            those that aren't leave gaps.
        shown: writes a value.
        base: 10, or 1024 for bytes: ticks are round numbers of KiB, MiB and so on.
    """
    finite = [
        point for series in lines.values() for point in series if all(map(math.isfinite, point))
    ]
    steps, values = zip(*finite, strict=True)
    first, last = min(steps), max(steps)
    # most begin with the first values that were logged
    first = 0 if 0 < first < last / 4 else first
    ticks = _ticks(min(values), max(values), base)
    low, high = min(ticks[0], *values), max(ticks[-1], *values)

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (
            (step - first) / (last - first) if last > first else 0.5
        )

    def y(value: float) -> float:
        # Halved, so that the difference of two large numbers is one too.
        half = high / 2 - low / 2
        share = (value / 2 - low / 2) / half if half else 0.5  # the half of the least number is 0
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        _grid_line(y(tick)) + _text(_LEFT - 8, y(tick) + 4, "end", shown(tick)) for tick in ticks
    ]
    parts.append(_text(0, _HEIGHT - 7, "start", "step"))
    parts += [
        _text(x(tick), _HEIGHT - 7, "middle", short_number(tick))
        for tick in _step_ticks(first, last)
    ]
    for number, series in lines.items():
        kind = colour_class(number)
        for part in _parts(_downsampled(series)):
            parts.append(_path([(x(step), y(value)) for step, value in part], kind))
        dots = series if len(series) <= _MAX_DOTS else []
        parts += [
            _dot(x(px), y(py), kind, f"step {short_number(px)}: {shown(py)}")
            for px, py in _finite(dots)
        ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
        f'{"".join(parts)}<path class="axis" d="M{_LEFT} '
        f'{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/></svg>'
    )


def colour_class(number: int) -> str:
    """A line's classes in the style sheet, `c0` to `c7`. More lines than colours begin anew,
    dashed.
    """
    return f"c{number % _NUM_COLOURS}" + " again" * (number >= _NUM_COLOURS)


def short_number(value: float) -> str:
    """Four digits that count; a whole number without a fraction, and in groups of three from 10,000
    on.
    """
    if abs(value) < 1e6 and value == int(value):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, base: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`; the two themselves where no round
    numbers fit.
    """
    unit = 1.0
    while base == 1024 and max(abs(low), abs(high)) >= unit * 1024:
        unit *= 1024
    if low == high:
        span = abs(low) / 2 or 1.0
        low, high = low - span, high + span
    step = _round_step((high - low) / unit / (_NUM_TICKS - 1)) * unit
    if not step or not math.isfinite(step):
        return [low, high]
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def _step_ticks(first: float, last: float) -> list[float]:
    """Whole numbers within the steps."""
    if first == last:
        return [first]
    step = max(1.0, _round_step((last - first) / _NUM_TICKS))
    if not math.isfinite(step):
        return [first, last]
    return [number * step for number in range(math.ceil(first / step), math.floor(last / step) + 1)]


def _round_step(least: float) -> float:
    """The next of 1, 2, 5 and 10 times a power of ten; 0 where no number is so small."""
    if not 0 < least < math.inf:
        return 0.0 if least <= 0 else math.inf
    power = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def _grid_line(py: float) -> str:
    return f'<path class="grid" d="M{_LEFT} {py:.1f}H{_WIDTH - _RIGHT}"/>'


def _text(px: float, py: float, anchor: str, what: str) -> str:
    return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{escape(what)}</text>'


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    if len(points) == 1:
        ((px, py),) = points
        return f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>'
    return f'<path class="line {kind}" d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}"/>'


def _dot(px: float, py: float, kind: str, title: str) -> str:
    return (
        f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" '
        f'r="2.2"><title>{escape(title)}</title></circle>'
    )


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


def _finite(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in series if all(map(math.isfinite, point))]


def _parts(series: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The stretches of finite points."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in series:
        if all(map(math.isfinite, point)):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
