"""`core doctor`: examines this machine and what is installed on it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from core.cli.layout import say, say_json, styled, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.cli.examination import Finding

_COLORS = {"ok": "green", "absent": "bright_black", "note": "yellow", "broken": "red"}


_EXAMPLES = """\b
Examples:
  core doctor
  core doctor --json
"""


@click.command(short_help="Examine this machine and what is installed on it.", epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
def doctor(as_json: bool) -> None:
    """Examine Python, torch, devices, communication, plugins and the path; exit with 1 if something is broken.

    States: ok; absent, which is in order; note, which you may want to know; broken.
    """
    from core.cli.examination import examine

    findings = list(examine())
    if as_json:
        say_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for line in _lines(findings):
            say(line)
    if any(finding.state == "broken" for finding in findings):
        raise SystemExit(1)


def _lines(findings: list[Finding]) -> Iterator[str]:
    cells = [
        [finding.subject, styled(finding.state, fg=_COLORS[finding.state]), finding.detail] for finding in findings
    ]
    yield from table(["What", "State", "Detail"], cells)
    broken = [finding.subject for finding in findings if finding.state == "broken"]
    yield ""
    yield f"Broken: {', '.join(broken)}." if broken else "Everything is in order."
