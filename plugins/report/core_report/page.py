"""The report of one run as a page."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from core.cli import size_text
from core_report import goodput_bars, ranks_chart, run_summary, timeline_chart
from core_report.html_parts import badge, cards, figure, page, table, text, written_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from core_report.run_record import CheckpointRecord, RunRecord, Series


def render(run: RunRecord) -> str:
    """The page: how it went, metrics as charts, what was decided and on what, and checkpoints with
    their digests.
    """
    return page(run.name, _body(run))


def charts(metrics: Mapping[str, Mapping[int, Series]], first: Iterable[str]) -> Iterator[str]:
    """Charts of all metrics, in groups: results, throughput, memory, goodput, ranks.

    Args:
        metrics: by name, the lines of each by the number of their colour.
        first: names of metrics to begin with.
    """
    order = dict.fromkeys([*first, *metrics])
    left = {name: metrics[name] for name in order if not goodput_bars.has(name)}
    left.pop("epoch", None)  # which is a clock, and no result
    groups = {}
    for prefix, title in run_summary.APART.items():
        groups[title] = {name: left.pop(name) for name in [*left] if name.startswith(prefix)}
    for title, found in {"Metrics": left, **groups}.items():
        if found:
            yield f'<h2>{title}</h2><div class="charts">'
            yield from (figure(name, lines) for name, lines in found.items())
            yield "</div>"
    if not any((left, *groups.values())):
        yield "<h2>Metrics</h2><p>There are no values to draw.</p>"


def left_out(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences on values that the charts lack."""
    for sentence in sentences:
        yield f'<p class="reason failed">{text(sentence)}</p>'


def flat(value: Any) -> str:
    """A value of an option as plain text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _body(run: RunRecord) -> Iterator[str]:
    yield from _head(run)
    yield from _best(run)
    yield from goodput_bars.section([("this run", run)])
    yield from left_out(run.left_out)
    yield from charts(
        {name: {0: series} for name, series in run.metrics.items()}, run_summary.best_of(run)
    )
    yield from timeline_chart.section(run.timeline)
    yield from ranks_chart.section(run.ranks)
    versions = run.facts.get("versions")
    yield '<div class="beside">'
    yield from _named("Hyperparameters", run.hparams)
    yield from _named("Versions", versions if isinstance(versions, dict) else {})
    yield "</div>"
    yield from _decisions(run)
    yield from _checkpoints(run.checkpoints)


def _head(run: RunRecord) -> Iterator[str]:
    outcome, reason = run_summary.outcome_of(run)
    began, machine, command = (run.facts.get(name) for name in ("began", "machine", "command"))
    yield f"<h1>{text(run.name)} {badge(outcome)}</h1>"
    if began or machine:
        known = ", on ".join(str(part) for part in (began, machine) if part)
        yield f'<p class="quiet">{text(known)}</p>'
    if reason:
        yield f'<p class="reason {"failed" if outcome == "failed" else "quiet"}">{text(reason)}</p>'
    facts = {
        "Trained": run_summary.position_of(run),
        "Duration": run_summary.duration_of(run),
        "Throughput": run_summary.speed_of(run),
        "Peak memory, rank 0": run_summary.memory_of(run),
        "Processes": str(run.facts.get("num_processes") or ""),
    }
    if any(facts.values()):
        yield from cards(facts)
    if command:
        yield f"<pre><code>{text(command)}</code></pre>"
    if resumed := run.facts.get("resumed_from"):
        yield f"<p>Resumed from <code>{text(resumed)}</code>.</p>"
    saved = run.facts.get("newest_save")
    if outcome != "finished" and isinstance(saved, list) and len(saved) == 2:
        yield (
            f"<p>It goes on from step {text(saved[1])} with "
            f"<code>{text(f'ckpt_path={saved[0]!r}')}</code>.</p>"
        )


def _best(run: RunRecord) -> Iterator[str]:
    found = run_summary.best_of(run).values()
    if found:
        yield "<h2>Best values</h2>"
        yield from table(["Metric", "Best", "At step", "Last"], map(_best_row, found))


def _best_row(best: run_summary.Best) -> list[str]:
    shown, _ = written_as(best.name)
    which = "least" if best.mode == "min" else "greatest"
    value = f"<b>{text(shown(best.value))}</b> <small>{which}</small>"
    return [
        f"<code>{text(best.name)}</code>",
        value,
        text(f"{best.step:,.0f}"),
        text(shown(best.last)),
    ]


def _decisions(run: RunRecord) -> Iterator[str]:
    decisions = run.facts.get("decisions")
    rows = (
        [row for row in decisions if isinstance(row, dict)] if isinstance(decisions, list) else []
    )
    yield "<h2>Strategy</h2>"
    if rows:
        names = ("subject", "choice", "reason", "provider")
        cells = ([text(row.get(name, "")) for name in names] for row in rows)
        yield from table(["What", "Choice", "Why", "From"], cells)
    else:
        yield (
            "<p>The folder doesn't say what was decided; checkpoints say by what they were "
            "written.</p>"
        )


def _checkpoints(checkpoints: list[CheckpointRecord]) -> Iterator[str]:
    yield "<h2>Checkpoints</h2>"
    if not checkpoints:
        yield "<p>None is in this folder.</p>"
        return
    yield from table(
        ["Checkpoint", "Saved", "Size", "Written by", "Files and digests"], map(_row, checkpoints)
    )


def _row(checkpoint: CheckpointRecord) -> list[str]:
    name = f"<code>{text(checkpoint.path)}</code>"
    if checkpoint.damage:
        return [name, "", "", "", f'<span class="damaged">{text(checkpoint.damage)}</span>']
    found, saved, writer = checkpoint.manifest, "", ""
    if found is not None:
        saved_at = datetime.datetime.fromtimestamp(found.saved_at_ns / 1e9, datetime.UTC)
        saved = f"{saved_at:%Y-%m-%d %H:%M:%S} UTC"
        parts = [f"{kind} {_writer(part)}" for kind, part in found.writer.items()]
        parts += [f"{found.world_size} process" + "es" * (found.world_size != 1)]
        parts += [f"{package} {version}" for package, version in found.versions.items()]
        writer = ", ".join(parts)
    rows = [
        f"<code>{text(file)}</code> {size_text(size)} <code>{text(digest or 'no digest')}</code>"
        for file, (size, digest) in checkpoint.files.items()
    ]
    files = (
        f"<details><summary>{len(rows)} "
        f"file{'s' * (len(rows) != 1)}</summary>{'<br>'.join(rows)}</details>"
    )
    return [name, saved, size_text(checkpoint.size_bytes), text(writer), files]


def _writer(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    return " ".join(str(part.get(name, "")) for name in ("alias", "provider", "version"))


def _named(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    if values:
        yield f"<section><h2>{title}</h2>"
        yield from table(
            ["Name", "Value"],
            ([text(name), text(flat(value))] for name, value in values.items()),
            "",
        )
        yield "</section>"
