"""The report of `core check` as one page of HTML that needs nothing else. Every text in it goes
through `escape`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from core_testing.cli.check_run import CheckResult, Suite, Test

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .75rem; text-align: left; vertical-align: top; }
.scroll { overflow-x: auto; }
.proven, .passed { color: #1a7f37; }
.failed { color: #cf222e; font-weight: 600; }
.not-declared, .skipped { color: #8c8c8c; }
.not-tested, .xfailed { color: #9a6700; }
pre { background: #8882; overflow-x: auto; padding: .75rem; }
summary { cursor: pointer; }
"""  # noqa: E501


def render(report: CheckResult) -> str:
    """The page: a matrix of plugins and capabilities, then each plugin with its tests."""
    return "\n".join(["<!doctype html>", *_page(report), ""])


def _page(report: CheckResult) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Conformance, {escape(report.date)}</title><style>{_STYLE}</style></head><body>"
    yield (
        f"<h1>Conformance</h1><p>{escape(report.date)}: {escape(versions)}. "
        f"{report.duration_s:.0f} s.</p>"
    )
    yield from _matrix(report.suites)
    for suite in report.suites:
        yield from _section(suite)
    yield "</body></html>"


def _matrix(suites: list[Suite]) -> Iterator[str]:
    names = sorted({name for suite in suites for name in suite.capabilities})
    rows = [
        [
            _link(suite),
            escape(suite.kind),
            escape(suite.ground),
            _counts(suite),
            *_states(suite, names),
        ]
        for suite in suites
    ]
    yield from _table(["Plugin", "Kind", "Ran on", "Tests", *map(escape, names)], rows)


def _states(suite: Suite, names: list[str]) -> Iterator[str]:
    for name in names:
        state = suite.capabilities.get(name)
        yield _marked(state, state) if state else ""


def _section(suite: Suite) -> Iterator[str]:
    yield f'<h2 id="{escape(suite.suite)}">{escape(suite.title)}</h2>'
    yield f"<p>Suite <code>{escape(suite.source)}</code>, {suite.num_processes} process(es).</p>"
    rows = [
        [
            _marked(test.outcome, test.outcome),
            escape(test.name),
            escape(", ".join(test.needs)),
            *_cells(test),
        ]
        for test in sorted(suite.tests, key=lambda test: test.outcome != "failed")
    ]
    is_open = " open" if any(test.outcome == "failed" for test in suite.tests) else ""
    yield f"<details{is_open}><summary>{_counts(suite)}</summary>"
    yield from _table(["Outcome", "Test", "Needs", "Seconds", "Reason"], rows)
    yield "</details>"


def _cells(test: Test) -> Iterator[str]:
    yield f"{test.duration_s:.1f}"
    reason = escape(test.reason)
    yield (
        f"<details><summary>{reason}</summary><pre>{escape(test.details)}</pre></details>"
        if test.details
        else reason
    )


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table as HTML. The cells are HTML already."""
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{header}</th>" for header in headers) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"


def _link(suite: Suite) -> str:
    return f'<a href="#{escape(suite.suite)}">{escape(suite.alias)}</a>'


def _counts(suite: Suite) -> str:
    return ", ".join(
        _marked(outcome, f"{number} {outcome}") for outcome, number in sorted(suite.count().items())
    )


def _marked(state: str, text: str) -> str:
    return f'<span class="{escape(state.replace(" ", "-"))}">{escape(text)}</span>'
