"""The timeline of a step that a callback left in a run's folder as `timeline.json`: a row a rank,
drawn in SVG.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from core.text import printable
from core_report.chart import colour_class
from core_report.html_parts import table, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH, _ROW, _BAR, _LEFT = 1000, 26, 20, 150
_MAX_ROWS, _MAX_SPANS = 64, 20_000


class _Span(NamedTuple):
    kind: str
    label: str
    detail: str
    begin_s: float
    end_s: float


def section(found: Mapping[str, Any]) -> Iterator[str]:
    """A heading, the picture, and a table of shares; nothing if there is no timeline.

    Args:
        found: the content of the file: `title`, `duration_s`, and `rows`, each with a `name` and
            `spans`. A span has `begin_s`, `end_s`, and a `kind`, which has a colour; `label` stands
            in it, `detail` where the mouse is.
    """
    duration_s = _number(found.get("duration_s"))
    rows = _rows(found.get("rows"), duration_s) if duration_s > 0 else {}
    if not any(rows.values()):
        return
    kinds = list(dict.fromkeys(span.kind for spans in rows.values() for span in spans))
    yield f"<h2>Timeline of {text(found.get('title', 'a step'))}</h2>"
    keys = "".join(
        f'<span class="named"><span class="key {colour_class(number)}"></span>{text(kind)}</span>'
        for number, kind in enumerate(kinds)
    )
    yield f'<div class="legend">{keys}</div>{_drawn(rows, kinds, duration_s)}'
    yield from table(["", *kinds, "nothing"], _shares(rows, kinds, duration_s), "")
    computing = sum(span.end_s - span.begin_s for spans in rows.values() for span in spans)
    idle = 1 - computing / (duration_s * len(rows))
    yield f"<p>It took {1000 * duration_s:.1f} ms. Of all rows together {idle:.1%} is a bubble.</p>"


def _rows(rows: Any, duration_s: float) -> dict[str, list[_Span]]:
    found: dict[str, list[_Span]] = {}
    if not isinstance(rows, list):
        return found
    for row in rows[:_MAX_ROWS]:
        spans = row.get("spans") if isinstance(row, dict) else None
        if isinstance(spans, list):
            read = (_span(span, duration_s) for span in spans[:_MAX_SPANS])
            found[str(row.get("name", ""))] = [span for span in read if span is not None]
    return found


def _span(given: Any, duration_s: float) -> _Span | None:
    if not isinstance(given, dict):
        return None
    begin_s, end_s = (_number(given.get(name)) for name in ("begin_s", "end_s"))
    if not 0 <= begin_s <= end_s:
        return None
    kind, label, detail = (str(given.get(name, "")) for name in ("kind", "label", "detail"))
    return _Span(kind, label, detail or kind, min(begin_s, duration_s), min(end_s, duration_s))


def _number(value: Any) -> float:
    """A finite number, or -1."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else -1.0


def _drawn(rows: Mapping[str, Sequence[_Span]], kinds: Sequence[str], duration_s: float) -> str:
    scale, parts = (_WIDTH - _LEFT) / duration_s, []
    for number, (name, spans) in enumerate(rows.items()):
        top = number * _ROW
        parts.append(f'<text x="0" y="{top + 15}">{escape(printable(name))}</text>')
        parts.append(f'<path class="grid" d="M{_LEFT} {top + _BAR / 2}H{_WIDTH}"/>')
        for span in spans:
            x, width = _LEFT + scale * span.begin_s, scale * (span.end_s - span.begin_s)
            colour = colour_class(kinds.index(span.kind))
            title = f"{printable(span.detail)}: {1000 * (span.end_s - span.begin_s):.2f} ms"
            parts.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}">'
                f"<title>{escape(title)}</title></rect>"
            )
            if width > 8 * len(span.label) > 0:
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{top + 15}" text-anchor="middle">'
                    f"{escape(printable(span.label))}</text>"
                )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {len(rows) * _ROW}" role="img" '
        f'aria-label="timeline">{"".join(parts)}</svg>'
    )


def _shares(
    rows: Mapping[str, Sequence[_Span]], kinds: Sequence[str], duration_s: float
) -> Iterator[list[str]]:
    for name, spans in rows.items():
        shares = [
            sum(span.end_s - span.begin_s for span in spans if span.kind == kind) / duration_s
            for kind in kinds
        ]
        yield [text(name), *(f"{share:.1%}" for share in (*shares, 1 - sum(shares)))]
