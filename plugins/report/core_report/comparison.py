"""The report of several runs, beside each other, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_report import goodput_bars, run_summary
from core_report.chart import colour_class
from core_report.html_parts import badge, page, table, text, written_as
from core_report.page import charts, flat, left_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core_report.run_record import RunRecord, Series


def render(runs: Sequence[RunRecord]) -> str:
    """The page: a row a run, with what differs between them and their best values; then each
    metric, a line a run.
    """
    return page(f"{len(runs)} runs of {_experiments(runs)}", _body(runs))


def _experiments(runs: Sequence[RunRecord]) -> str:
    return ", ".join(dict.fromkeys(run.experiment for run in runs))


def _body(runs: Sequence[RunRecord]) -> Iterator[str]:
    settings = [run_summary.settings_of(run) for run in runs]
    bests = [run_summary.best_of(run) for run in runs]
    differ = run_summary.differing(settings)
    yield f"<h1>{len(runs)} runs of {text(_experiments(runs))}</h1>"
    yield from _progress(runs)
    yield from _results(runs, settings, bests, differ)
    yield from goodput_bars.section((_name(runs, number), run) for number, run in enumerate(runs))
    keys = (_key(runs, number) for number in range(len(runs)))
    yield f'<div class="legend">{"".join(keys)}</div>'
    yield from left_out(f"{run.name}: {sentence}" for run in runs for sentence in run.left_out)
    yield from charts(_lines(runs), dict.fromkeys(name for best in bests for name in best))
    same = {name: value for name, value in settings[0].items() if name not in differ}
    yield "<h2>The same in all runs</h2>"
    yield from table(
        ["Name", "Value"], ([text(name), text(flat(value))] for name, value in same.items()), ""
    )


def _progress(runs: Sequence[RunRecord]) -> Iterator[str]:
    """A row a run: how it went, how far, how long and how fast."""
    answers = (
        run_summary.position_of,
        run_summary.duration_of,
        run_summary.speed_of,
        run_summary.memory_of,
    )
    rows = []
    for number, run in enumerate(runs):
        outcome, reason = run_summary.outcome_of(run)
        why = f"<small>{text(reason)}</small>" if reason else ""
        rows.append(
            [_key(runs, number), badge(outcome), *(text(answer(run)) for answer in answers), why]
        )
    yield from table(
        ["Run", "Outcome", "Trained", "Duration", "Throughput", "Peak memory", "Why"],
        rows,
        "stacked brief",
    )


def _results(
    runs: Sequence[RunRecord],
    settings: list[dict[str, Any]],
    bests: list[dict[str, run_summary.Best]],
    differ: list[str],
) -> Iterator[str]:
    """A row a run: the settings that differ, and the best values."""
    names = list(dict.fromkeys(name for best in bests for name in best))
    rows = [
        [
            _key(runs, number),
            *(text(flat(given[name])) if name in given else "" for name in differ),
            *(_best_cell(name, best.get(name), bests) for name in names),
        ]
        for number, (given, best) in enumerate(zip(settings, bests, strict=True))
    ]
    yield "<h2>Settings that differ, and best values</h2>"
    if not differ:
        yield "<p>All settings that the folders record are the same.</p>"
    yield from table(["Run", *differ, *(f"best {name}" for name in names)], rows, "runs")


def _best_cell(
    name: str, best: run_summary.Best | None, bests: list[dict[str, run_summary.Best]]
) -> str:
    """The best value of one run, bold if no other run's is better."""
    if best is None:
        return ""
    shown = text(written_as(name)[0](best.value))
    values = [each[name].value for each in bests if name in each]
    best_of_all = min(values) if best.mode == "min" else max(values)
    return f"<b>{shown}</b>" if best.value == best_of_all else shown


def _lines(runs: Sequence[RunRecord]) -> dict[str, dict[int, Series]]:
    found: dict[str, dict[int, Series]] = {}
    for number, run in enumerate(runs):
        for name, series in run.metrics.items():
            found.setdefault(name, {})[number] = series
    return found


def _key(runs: Sequence[RunRecord], number: int) -> str:
    """The colour of a run, and its name."""
    return (
        '<span class="named"><span class="key '
        f'{colour_class(number)}"></span>{text(_name(runs, number))}</span>'
    )


def _name(runs: Sequence[RunRecord], number: int) -> str:
    """The name of a run; that of the experiment too, where there are several."""
    is_alone = len({each.experiment for each in runs}) == 1
    return runs[number].folder.resolve().name if is_alone else runs[number].name
