"""The peak over numbers of devices, as lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from core.cli import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 10, 30
_NUM_COLOURS, _MOST_TICKS = 8, 6


def devices_chart(lines: Sequence[Sequence[tuple[int, int]]], limit_bytes: int | None) -> str:
    """An `svg` of lines; devices double from one unit to the next.

    Args:
        lines: devices and bytes, in the order of their colours; each with at least one point.
        limit_bytes: the memory of a device, drawn as a dashed line.
    """
    places = sorted({number for line in lines for number, _ in line})
    most = max([size for line in lines for _, size in line] + [limit_bytes or 1])
    step = _step(most)
    high = step * math.ceil(most / step)

    def x(number: int) -> float:
        span = math.log2(places[-1] / places[0]) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(number / places[0]) / span

    def y(size: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * size / high

    parts = []
    for tick in range(round(high / step) + 1):
        at = y(tick * step)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 8, at + 4, "end", size_text(tick * step).replace(".0 ", " ")))
    every = math.ceil(len(places) / 7)
    parts += [
        _text(x(number), _HEIGHT - 10, "middle", f"{number:,}") for number in places[::-every][::-1]
    ]
    for index, line in enumerate(lines):
        kind = f"c{index % _NUM_COLOURS}" + " again" * (index >= _NUM_COLOURS)
        path = "L".join(f"{x(number):.1f} {y(size):.1f}" for number, size in line)
        parts.append(f'<path class="line {kind}" d="M{path}"/>')
        parts += [
            f'<circle class="{kind}" cx="{x(number):.1f}" cy="{y(size):.1f}" r="2.6">'
            f"<title>{number:,} devices: {size_text(size)}</title></circle>"
            for number, size in line
        ]
    if limit_bytes is not None:
        parts.append(f'<path class="limit" d="M{_LEFT} {y(limit_bytes):.1f}H{_WIDTH - _RIGHT}"/>')
    axis = f'<path class="axis" d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
    label = "Peak memory of a rank over the number of devices"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}{axis}</svg>'
    )


def _step(most: float) -> float:
    """Between ticks: 1, 2 or 5 times a power of ten of the unit in which the most is written."""
    unit = 1024.0 ** int(math.log(most, 1024)) if most >= 1024 else 1.0
    least = most / unit / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return unit * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _text(at: float, down: float, anchor: str, what: str) -> str:
    return f'<text x="{at:.1f}" y="{down:.1f}" text-anchor="{anchor}">{what}</text>'
