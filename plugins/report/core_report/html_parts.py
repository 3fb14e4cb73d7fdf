"""Parts of a page of HTML that needs nothing else. Every text in it goes through `text`."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from core.cli import size_text
from core.text import printable
from core_report.chart import line_chart, short_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from core_report.run_record import Series

_COLOURS = ("#2f81f7", "#d9730d", "#1a9e5c", "#c93a9b", "#8a63d2", "#a58700", "#0d9aa8", "#d1242f")
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; --quiet: #8886; --soft: #8882; }
body { margin: 2rem auto 4rem; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { border-bottom: 1px solid var(--soft); font-size: 1.15rem; margin: 2.25rem 0 .75rem; padding-bottom: .25rem; }
p { margin: .5rem 0; }
.reason { border-left: .25rem solid; overflow-wrap: anywhere; padding-left: .7rem; }
small, .quiet { color: #888; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); border-radius: .4rem; margin: .75rem 0; padding: .6rem .8rem; white-space: pre-wrap; }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.card { border: 1px solid var(--quiet); border-radius: .5rem; flex: 1 1 auto; padding: .6rem .8rem; }
.card small { display: block; }
.card b { font-size: 1.05rem; font-weight: 600; }
.badge { border: 1px solid; border-radius: 1rem; font-size: .85rem; font-weight: 600; padding: .1rem .65rem; }
.badge { white-space: nowrap; }
.finished { color: #1a9e5c; }
.failed, .damaged { color: #d1242f; }
.interrupted, .open { color: #b8720a; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--soft); padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; }
th { color: #888; font-size: .85rem; font-weight: 600; }
td.number, th.number { text-align: right; }
.scroll { overflow-x: auto; }
.brief th, .brief td:not(:last-child) { white-space: nowrap; }
.beside { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); }
.runs th, .runs td { white-space: nowrap; }
.runs td:first-child, .runs th:first-child { background: Canvas; left: 0; position: sticky; }
.legend { background: Canvas; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: .5rem 0; position: sticky; }
.legend { font-size: .9rem; top: 0; z-index: 1; }
.keys { display: flex; flex-wrap: wrap; font-size: .9rem; gap: .2rem 1.1rem; padding: .5rem 0; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(27rem, 100%), 1fr)); }
figure { border: 1px solid var(--quiet); border-radius: .5rem; margin: 0; min-width: 0; padding: .75rem; }
figcaption { margin-bottom: .4rem; overflow-wrap: anywhere; }
figcaption small { display: block; }
svg { display: block; height: auto; overflow: visible; width: 100%; }
.strip { align-items: center; display: grid; gap: 0 .8rem; grid-template-columns: 11rem 1fr 7rem; margin: .25rem 0; }
.strip span { font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.strip svg { background: var(--soft); height: 1.1rem; }
rect.hot { fill: #d1242f; }
rect.cold { fill: #2f81f7; }
.key.hot { background: #d1242f; }
.key.cold { background: #2f81f7; }
svg text { fill: currentColor; font-size: 11px; opacity: .75; }
.axis { fill: none; stroke: #888; }
.grid { fill: none; stroke: var(--soft); }
.line { fill: none; stroke-linejoin: round; stroke-width: 1.8; }
.line.again { stroke-dasharray: 5 3; }
.named { white-space: nowrap; }
.key { border-radius: 50%; display: inline-block; height: .7rem; margin-right: .4rem; width: .7rem; }
.key.again { mask: radial-gradient(circle, transparent .15rem, #000 .17rem); }
summary { cursor: pointer; }
@media (max-width: 40rem) {
  svg text { font-size: 14px; }
  .strip { grid-template-columns: 1fr auto; margin: .5rem 0; }
  .strip svg { grid-column: 1 / -1; grid-row: 2; }
  .stacked, .stacked tbody { display: block; }
  .stacked tr { border-bottom: 1px solid var(--quiet); display: block; padding: .4rem 0; }
  .stacked tr:first-child { display: none; }
  .stacked td { border: 0; display: block; padding: .05rem 0; text-align: left; }
  .stacked td:empty { display: none; }
  .stacked td[title]::before { color: #888; content: attr(title) ": "; }
  .stacked td:first-child { font-weight: 600; }
  .stacked td:first-child::before { content: none; }
}
@media print { :root { color-scheme: light; } figure, .card, tr { break-inside: avoid; } }
"""  # noqa: E501


def page(title: str, body: Iterable[str]) -> str:
    """The whole page.

    Args:
        title: as plain text.
        body: HTML, below the title.
    """
    kinds = "".join(
        f".line.c{number} {{ stroke: {colour}; }} circle.c{number}, rect.c{number} {{ fill: "
        f"{colour}; }} .key.c{number} {{ background: {colour}; }}\n"
        for number, colour in enumerate(_COLOURS)
    )
    head = '<html lang="en"><head><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    style = f"<title>{text(title)}</title><style>{_STYLE}{kinds}</style></head><body>"
    return "\n".join(["<!doctype html>", head + style, *body, "</body></html>", ""])


def text(value: Any) -> str:
    """Anything as text within HTML."""
    return escape(printable(str(value)))


def badge(outcome: str) -> str:
    """The outcome of a run, in its colour; nothing if it isn't known."""
    kind = outcome if outcome in ("finished", "failed", "interrupted") else "open"
    return f'<span class="badge {kind}">{text(outcome)}</span>' if outcome else ""


def cards(facts: Mapping[str, str]) -> Iterator[str]:
    """Facts beside each other, those that aren't empty."""
    yield '<div class="cards">'
    for name, value in facts.items():
        if value:
            yield f'<div class="card"><small>{text(name)}</small><b>{text(value)}</b></div>'
    yield "</div>"


def table(
    headers: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "stacked"
) -> Iterator[str]:
    """A table. The cells are HTML already.

    Args:
        headers: plain texts.
        rows: a cell a header.
        kind: `"stacked"` has a row's cells below each other on a narrow screen; `"runs"` keeps its
            first column in view; empty is a plain one; `"stacked brief"` breaks no line but in its
            last column.
    """
    titles = [text(header) for header in headers]
    yield (
        '<div class="scroll"><table '
        f'class="{kind}"><tr>{"".join(f"<th>{title}</th>" for title in titles)}</tr>'
    )
    for row in rows:
        cells = [
            f'<td title="{title}">{cell}</td>' for title, cell in zip(titles, row, strict=True)
        ]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"


def figure(name: str, lines: Mapping[int, Series]) -> str:
    """A metric as a chart.

    Args:
        name: of the metric.
        lines: by the number of their colour, each with at least one finite value.
    """
    shown, base = written_as(name)
    details = (
        f"<small>{text(_details(next(iter(lines.values())), shown))}</small>"
        if len(lines) == 1
        else ""
    )
    chart = line_chart(printable(name), lines, shown, base)
    return f"<figure><figcaption><b>{text(name)}</b>{details}</figcaption>{chart}</figure>"


def written_as(name: str) -> tuple[Callable[[float], str], int]:
    """The function that writes the values of a metric, and the base of their units."""
    return (_bytes_text, 1024) if name.endswith("_bytes") else (short_number, 10)


def _bytes_text(value: float) -> str:
    return size_text(value).replace(".0 ", " ")


def _details(series: Series, shown: Callable[[float], str]) -> str:
    values = [value for _, value in series if math.isfinite(value)]
    missing = len(series) - len(values)
    parts = [
        f"last {shown(series[-1][1])}",
        f"least {shown(min(values))}",
        f"greatest {shown(max(values))}",
    ]
    parts += [f"{len(series):,} value" + "s" * (len(series) != 1)]
    if missing:
        parts.append(f"{missing} of them not finite")
    return ", ".join(parts)
