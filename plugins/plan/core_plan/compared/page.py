"""A comparison as a page that needs nothing else."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from core.cli import size_text
from core_plan.compared.table import HEADERS, cells, conditions, note
from core_report.chart import colour_class, short_number
from core_report.html_parts import figure, page, table, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_plan.compared.comparison import Comparison
    from core_plan.compared.figures import Result

_STYLE = """<style>
.bars { display: grid; gap: .35rem .8rem; grid-auto-flow: row dense; margin: .5rem 0 1.5rem; }
.bars { align-items: center; grid-template-columns: max-content 1fr max-content; }
.bars .name { overflow-wrap: anywhere; }
.bars .value { font-variant-numeric: tabular-nums; grid-column: 3; text-align: right; }
.bars .track { background: var(--soft); border-radius: .25rem; grid-column: 2; height: 1.1rem; position: relative; }
.bars .bar { border-radius: .25rem; display: block; height: 100%; margin: 0; }
.bars .range { background: currentColor; height: 2px; opacity: .65; position: absolute; top: calc(50% - 1px); }
@media (max-width: 40rem) {
  .bars { grid-template-columns: 1fr max-content; }
  .bars .value { grid-column: 2; }
  .bars .track { grid-column: 1 / -1; margin-bottom: .4rem; }
}
</style>"""  # noqa: E501


def render(comparison: Comparison) -> str:
    """The page: the table, what became of the numbers, bars of speed, memory and bytes, and losses
    as a chart.
    """
    return page(f"{len(comparison.results)} strategies for {_name(comparison)}", _body(comparison))


def _name(comparison: Comparison) -> str:
    program = [part for part in comparison.settings.program if part != "-m"]
    return program[0] if program else ""


def _body(comparison: Comparison) -> Iterator[str]:
    results = comparison.results
    yield _STYLE
    yield f"<h1>{len(results)} strategies for {text(_name(comparison))}</h1>"
    yield f"<pre><code>{text(shlex.join(comparison.settings.program))}</code></pre>"
    if comparison.interrupted:
        yield '<p class="reason interrupted">Interrupted: this is what there is.</p>'
    rows = [
        [_key(number, result), *map(text, cells(result)[1:])]
        for number, result in enumerate(results)
    ]
    yield from table(["Strategy", *(header.capitalize() for header in HEADERS[1:])], rows)
    yield f'<p class="quiet">{text(conditions(comparison))}</p>'
    yield from _numbers(comparison)
    yield from _bars("Samples a second", results, _speed, short_number, _quartiles)
    yield from _bars(
        "Peak memory of a rank", results, lambda result: result.peak_memory_bytes, size_text
    )
    yield from _bars("Bytes sent in a step", results, _sent, size_text)
    yield from _losses(comparison)
    yield from _logs(results)


def _key(number: int, result: Result) -> str:
    return (
        '<span class="named"><span class="key '
        f'{colour_class(number)}"></span>{text(result.strategy)}</span>'
    )


def _numbers(comparison: Comparison) -> Iterator[str]:
    yield "<h2>Numbers</h2>"
    rows = []
    for number, result in enumerate(comparison.results):
        found = result.numbers
        is_apart = found.get("weights_part") or found.get("loss_parts_at_step") is not None
        kind = "failed" if is_apart or result.status == "failed" else ""
        rows.append(
            [_key(number, result), f'<span class="{kind}">{text(note(comparison, result))}</span>']
        )
    yield from table(["Strategy", "Losses and weights"], rows, "stacked brief")


def _speed(result: Result) -> float | None:
    return result.samples_per_s.median if result.samples_per_s else None


def _quartiles(result: Result) -> tuple[float, float] | None:
    return (result.samples_per_s.low, result.samples_per_s.high) if result.samples_per_s else None


def _sent(result: Result) -> float | None:
    return None if result.sent_bytes is None else sum(result.sent_bytes.values())


def _bars(
    title: str,
    results: list[Result],
    value_of: Callable[[Result], float | None],
    shown: Callable[[float], str],
    range_of: Callable[[Result], tuple[float, float] | None] = lambda result: None,
) -> Iterator[str]:
    """A bar a contender, with a line from the lower to the upper quartile where there are some."""
    values = {
        number: value
        for number, each in enumerate(results)
        if (value := value_of(each)) is not None
    }
    if not values:
        return
    ranges = {
        number: found for number in values if (found := range_of(results[number])) is not None
    }
    largest = max([*values.values(), *(high for _, high in ranges.values())]) or 1.0
    yield f'<h2>{text(title)}</h2><div class="bars">'
    for number, value in values.items():
        line = ""
        if number in ranges:
            low, high = (100 * end / largest for end in ranges[number])
            line = f'<div class="range" style="left:{low:.2f}%;width:{high - low:.2f}%"></div>'
        colour = f"key {colour_class(number)}"
        bar = f'<div class="bar {colour}" style="width:{100 * value / largest:.2f}%"></div>'
        yield (
            f'<div class="name">{text(results[number].strategy)}</div><div '
            f'class="value">{text(shown(value))}</div>'
            f'<div class="track">{bar}{line}</div>'
        )
    yield "</div>"


def _losses(comparison: Comparison) -> Iterator[str]:
    lines = {
        number: [(float(step + 1), loss) for step, loss in enumerate(result.losses)]
        for number, result in enumerate(comparison.results)
        if any(map(math.isfinite, result.losses))
    }
    if lines:
        keys = (_key(number, comparison.results[number]) for number in lines)
        yield f'<h2>Losses of the first round</h2><div class="legend">{"".join(keys)}</div>'
        yield f'<div class="charts">{figure("loss", lines)}</div>'


def _logs(results: list[Result]) -> Iterator[str]:
    for result in results:
        if result.log:
            yield f"<details><summary>The last lines of {text(result.strategy)}</summary>"
            yield f"<pre><code>{_lines(result.log)}</code></pre></details>"


def _lines(log: str) -> str:
    return "\n".join(map(text, log.split("\n")))
