"""Ranks by their own time, which a callback left in a run's folder as `ranks.json`: a heat map, and
bars of phases.
"""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from core_report.chart import colour_class, short_number
from core_report.html_parts import table, text
from core_report.strips import BarPart, legend, strip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MAX_ROWS, _MAX_COLUMNS, _MAX_PHASES = 64, 400, 8
_FULL = 0.5
"""Share of a step behind the median, or before it, that has the full colour."""


class _Column(NamedTuple):
    first_step: float
    last_step: float
    seconds: list[list[float]]


def section(found: Mapping[str, Any]) -> Iterator[str]:
    """A heading, who was named, a heat map of all ranks over the run, and a bar of phases a rank;
    nothing without them.

    Args:
        found: the content of the file: `phases`; `rows`, a name a rank; `columns`, each with
            `first_step`, `last_step` and `seconds`: a list a rank, of its own seconds in each phase
            of a batch; and `named`, sentences.
    """
    phases, rows, named = (_texts(found.get(name)) for name in ("phases", "rows", "named"))
    phases = phases[:_MAX_PHASES]
    columns = _columns(found.get("columns"), len(rows), len(phases))
    if not columns:
        return
    means = [
        [fmean(each.seconds[rank][phase] for each in columns) for phase in range(len(phases))]
        for rank in _range(rows)
    ]
    shown = sorted(sorted(_range(rows), key=lambda rank: -sum(means[rank]))[:_MAX_ROWS])
    yield "<h2>Ranks by time</h2>"
    for sentence in named:
        yield f'<p class="reason failed">{text(sentence)}</p>'
    yield from _map(columns, rows, shown)
    yield from _bars(means, phases, rows, shown)
    if len(shown) < len(rows):
        yield f"<p>Shown are the {len(shown)} slowest of {len(rows)} ranks.</p>"


def _range(rows: Sequence[str]) -> range:
    return range(len(rows))


def _map(columns: Sequence[_Column], rows: Sequence[str], shown: Sequence[int]) -> Iterator[str]:
    """A row a rank and a column a stretch of steps: how far its own time is from the median of all
    ranks.
    """
    first, last = columns[0].first_step, columns[-1].last_step
    yield (
        "<p>Each rank's own time of a step, without waiting for others, beside the median of all "
        f"ranks, from step {short_number(first)} to {short_number(last)}: "
        f'<span class="named"><span class="key hot"></span>longer</span> '
        '<span class="named"><span class="key cold"></span>shorter</span>, in full colour from '
        f"{_FULL:.0%} on.</p>"
    )
    middles = [median(map(sum, each.seconds)) for each in columns]
    spans = [max(each.last_step - each.first_step, 0.0) for each in columns]
    whole = sum(spans) or 1.0
    for rank in shown:
        behind = [
            sum(each.seconds[rank]) / middle - 1 if middle else 0.0
            for each, middle in zip(columns, middles, strict=True)
        ]
        parts = (
            BarPart(
                "hot" if share > 0 else "cold",
                span / whole,
                f"step {short_number(each.first_step)} to {short_number(each.last_step)}: "
                f"{share:+.1%}",
                min(abs(share) / _FULL, 1.0),
            )
            for each, share, span in zip(columns, behind, spans, strict=True)
        )
        yield strip(rows[rank], parts, f"{median(behind):+.1%}")


def _bars(
    means: Sequence[Sequence[float]],
    phases: Sequence[str],
    rows: Sequence[str],
    shown: Sequence[int],
) -> Iterator[str]:
    """A bar a rank of the mean time in each phase, and the same as a table."""
    yield from legend({phase: number for number, phase in enumerate(phases)})
    longest = max(map(sum, means)) or 1.0
    for rank in shown:
        parts = (
            BarPart(
                colour_class(number),
                seconds / longest,
                f"{phases[number]}: {_milliseconds(seconds)}",
            )
            for number, seconds in enumerate(means[rank])
        )
        yield strip(rows[rank], parts, _milliseconds(sum(means[rank])))
    cells = ([text(rows[rank]), *map(_milliseconds, means[rank])] for rank in shown)
    yield from table(["Own time of a batch", *phases], cells)


def _milliseconds(seconds: float) -> str:
    return f"{short_number(float(f'{1000 * seconds:.3g}'))} ms"


def _texts(given: Any) -> list[str]:
    return [str(each) for each in given] if isinstance(given, list) else []


def _columns(given: Any, num_ranks: int, num_phases: int) -> list[_Column]:
    """Those that are whole."""
    read = (
        [_column(each, num_ranks, num_phases) for each in given[:_MAX_COLUMNS]]
        if isinstance(given, list)
        else []
    )
    return [each for each in read if each is not None]


def _column(given: Any, num_ranks: int, num_phases: int) -> _Column | None:
    if not isinstance(given, dict):
        return None
    first, last, seconds = given.get("first_step"), given.get("last_step"), given.get("seconds")
    if not (
        _is_time(first)
        and _is_time(last)
        and isinstance(seconds, list)
        and len(seconds) == num_ranks > 0
    ):
        return None
    if not all(
        isinstance(row, list) and len(row) >= num_phases > 0 and all(map(_is_time, row))
        for row in seconds
    ):
        return None
    return _Column(first, last, [row[:num_phases] for row in seconds])


def _is_time(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
