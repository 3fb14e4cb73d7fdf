"""The report of a run as one page of HTML that needs nothing else. Every text in it goes through `escape`."""

from __future__ import annotations

import datetime
import json
import math
from html import escape
from typing import TYPE_CHECKING, Any

from core.cli.chart import line_chart, short_number
from core.cli.layout import size_text
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from core.cli.run_record import CheckpointRecord, RunRecord, Series

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .75rem; text-align: left; vertical-align: top; }
.scroll { overflow-x: auto; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(27rem, 100%), 1fr)); }
figure { border: 1px solid #8884; border-radius: .5rem; margin: 0; padding: .75rem; }
figcaption { overflow-wrap: anywhere; }
figcaption small { color: #888; }
svg { display: block; height: auto; width: 100%; }
svg text { fill: currentColor; font-size: 11px; }
.axis { fill: none; stroke: #8888; }
.line { fill: none; stroke: #2f81f7; stroke-linejoin: round; stroke-width: 1.8; }
circle { fill: #2f81f7; }
code { overflow-wrap: anywhere; }
td:first-child code { overflow-wrap: break-word; }
.damaged { color: #cf222e; }
summary { cursor: pointer; }
"""

_GROUPS = {"Throughput": ("throughput/",), "Memory and device": ("device/",)}


def render(run: RunRecord) -> str:
    """The page: what was decided and on what, metrics as charts, and checkpoints with their digests."""
    return "\n".join(["<!doctype html>", *_page(run), ""])


def _page(run: RunRecord) -> Iterator[str]:
    title = _text(f"{run.folder.resolve().parent.name}/{run.folder.resolve().name}")
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield from _decisions(run)
    yield from _named("Versions", _mapping(run.facts.get("versions")))
    yield from _named("Hyperparameters", run.hparams)
    yield from _metrics(run.metrics)
    yield from _checkpoints(run.checkpoints)
    yield "</body></html>"


def _decisions(run: RunRecord) -> Iterator[str]:
    began, machine = (run.facts.get(name) for name in ("began", "machine"))
    if began or machine:
        yield f"<p>{_text(', on '.join(str(part) for part in (began, machine) if part))}</p>"
    decisions = run.facts.get("decisions")
    rows = [row for row in decisions if isinstance(row, dict)] if isinstance(decisions, list) else []
    yield "<h2>Strategy</h2>"
    if rows:
        names = ("subject", "choice", "reason", "provider")
        cells = ([_text(row.get(name, "")) for name in names] for row in rows)
        yield from _table(["What", "Choice", "Why", "From"], cells)
    else:
        yield "<p>The folder doesn't say what was decided; checkpoints say by what they were written.</p>"


def _metrics(metrics: Mapping[str, Series]) -> Iterator[str]:
    left = {name: series for name, series in metrics.items() if name != "epoch"}  # which is a clock, and no result
    groups = {}
    for title, prefixes in _GROUPS.items():
        groups[title] = {name: left.pop(name) for name in [*left] if name.startswith(prefixes)}
    for title, found in {"Metrics": left, **groups}.items():
        if found:
            yield f'<h2>{title}</h2><div class="charts">'
            yield from (_figure(name, series) for name, series in found.items())
            yield "</div>"
    if not any((left, *groups.values())):
        yield "<h2>Metrics</h2><p>None was logged.</p>"


def _figure(name: str, series: Series) -> str:
    values = [value for _, value in series if math.isfinite(value)]
    missing = len(series) - len(values)
    shown = size_text if name.endswith("_bytes") else short_number
    parts = [f"last {shown(series[-1][1])}", f"least {shown(min(values))}"]
    parts += [f"greatest {shown(max(values))}", f"{len(series)} values"]
    parts += [f"{missing} of them not finite"] if missing else []
    caption = f"<figcaption><b>{_text(name)}</b> <small>{', '.join(parts)}</small></figcaption>"
    return f"<figure>{caption}{line_chart(printable(name), series, shown)}</figure>"


def _checkpoints(checkpoints: list[CheckpointRecord]) -> Iterator[str]:
    yield "<h2>Checkpoints</h2>"
    if not checkpoints:
        yield "<p>None is in this folder.</p>"
        return
    yield from _table(["Checkpoint", "Saved", "Size", "Written by", "Files and digests"], map(_row, checkpoints))


def _row(checkpoint: CheckpointRecord) -> list[str]:
    name = f"<code>{_text(checkpoint.path)}</code>"
    if checkpoint.damage:
        return [name, "", "", "", f'<span class="damaged">{_text(checkpoint.damage)}</span>']
    found, saved, writer = checkpoint.manifest, "", ""
    if found is not None:
        saved = f"{datetime.datetime.fromtimestamp(found.saved_at_ns / 1e9, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
        parts = [f"{kind} {_writer(part)}" for kind, part in found.writer.items()]
        parts += [f"{found.world_size} process" + "es" * (found.world_size != 1)]
        parts += [f"{package} {version}" for package, version in found.versions.items()]
        writer = ", ".join(parts)
    rows = [
        f"<code>{_text(file)}</code> {size_text(size)} <code>{_text(digest or 'no digest')}</code>"
        for file, (size, digest) in checkpoint.files.items()
    ]
    files = f"<details><summary>{len(rows)}</summary>{'<br>'.join(rows)}</details>" if len(rows) > 1 else "".join(rows)
    return [name, saved, size_text(checkpoint.size_bytes), _text(writer), files]


def _writer(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    return " ".join(str(part.get(name, "")) for name in ("alias", "provider", "version"))


def _named(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    if values:
        yield f"<h2>{title}</h2>"
        yield from _table(["Name", "Value"], ([_text(name), _text(_flat(value))] for name, value in values.items()))


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table as HTML. The cells are HTML already."""
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{header}</th>" for header in headers)}</tr>'
    for row in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _text(value: Any) -> str:
    return escape(printable(str(value)))
