"""Where the time of runs went: the newest values of the metrics `goodput/...`, a bar a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from core_report.chart import colour_class
from core_report.strips import BarPart, legend, strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from core_report.run_record import RunRecord

_PREFIX = "goodput/"
_COLOURS = {
    "useful": 2,
    "start": 0,
    "data": 1,
    "validation": 4,
    "saves": 5,
    "skipped": 3,
    "lost": 7,
}
_OTHER = 6


def has(name: str) -> bool:
    """True for metrics that need no chart beside the bars: all parts but the useful one."""
    return name.startswith(_PREFIX) and name != f"{_PREFIX}useful"


def section(runs: Iterable[tuple[str, RunRecord]]) -> Iterator[str]:
    """A heading, and a bar for each run that has such metrics; nothing if none has.

    Args:
        runs: each after what is written beside its bar.
    """
    found = [(name, shares) for name, run in runs if (shares := _shares(run))]
    if not found:
        return
    yield "<h2>Goodput: where the time went</h2>"
    kinds = dict.fromkeys(part for _, shares in found for part in shares)
    yield from legend({part: _COLOURS.get(part, _OTHER) for part in kinds})
    for name, shares in found:
        parts = (
            BarPart(colour_class(_COLOURS.get(part, _OTHER)), share, f"{part}: {share:.1%}")
            for part, share in shares.items()
        )
        yield strip(name, parts, f"{shares.get('useful', 0.0):.1%} useful")
    if len(found) == 1:
        [(_, shares)] = found
        yield f"<p>{', '.join(f'{part} {share:.1%}' for part, share in shares.items())}.</p>"


def _shares(run: RunRecord) -> dict[str, float]:
    """The newest share of each part above 0; together at most 1."""
    newest = {
        name.removeprefix(_PREFIX): series[-1][1]
        for name, series in run.metrics.items()
        if name.startswith(_PREFIX)
    }
    shares = {part: share for part, share in newest.items() if math.isfinite(share) and share > 0}
    whole = max(1.0, sum(shares.values()))
    return {part: share / whole for part, share in shares.items()}
