"""The capabilities that were proven: collected while the tests run, and printed as a table at the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

from core_testing.ranks import end_kept_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core import Capability

_NAME = "core-conformance"


@dataclass(slots=True)
class CaseResult:
    """One test of one plugin.

    Attributes:
        alias: of the plugin.
        test: its name, with its parameter in brackets.
        needs: capabilities that the plugin must declare for it; None if every plugin must pass it.
        outcome: `"passed"`, `"failed"`, `"skipped"`, `"xfailed"`; empty while it runs.
        reason: of a skip, a known failure, or a failure.
        duration_s: of the test itself.
    """

    alias: str
    test: str
    needs: Capability | None
    outcome: str = ""
    reason: str = ""
    duration_s: float = 0.0


class ConformanceReport:
    """A pytest plugin; the suites register it by themselves when the first of them runs.

    Attributes:
        rows: by pytest's node id, in the order in which the tests ran.
    """

    def __init__(self) -> None:
        self.rows: dict[str, CaseResult] = {}

    def begin(self, nodeid: str, alias: str, test: str, needs: Capability | None) -> None:
        """A test of a suite is about to run."""
        self.rows[nodeid] = CaseResult(alias, test, needs)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a test in a process of its own if its suite says `own_process`."""
        suite = pyfuncitem.instance
        # For pytest, True means that the test was run, None that it is pytest's to run.
        if not getattr(suite, "own_process", False) or getattr(pyfuncitem.function, "launches", False):
            return None
        arguments = {name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters}
        if skipped := suite.alone(partial(_run_alone, pyfuncitem, arguments)):
            pytest.skip(skipped)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End the ranks that a class of tests has kept, after its last test."""
        if nextitem is None or nextitem.parent is not item.parent:
            end_kept_ranks()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how it ended: by its worst part."""
        row = self.rows.get(report.nodeid)
        # Of set-up and teardown only what went wrong counts.
        if row is None or (report.when != "call" and report.passed):
            return
        row.outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        row.reason = getattr(report, "wasxfail", "") or _reason(report)
        row.duration_s = report.duration

    def capabilities(self, alias: str) -> dict[str, str]:
        """`"proven"`, `"failed"` or `"not declared"` by the name of each capability that the kit can test."""
        return capabilities_of(row for row in self.rows.values() if row.alias == alias)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        aliases = dict.fromkeys(row.alias for row in self.rows.values() if row.needs is not None)
        if not aliases:
            return
        terminalreporter.section("capabilities")
        for alias in aliases:
            for name, verdict in sorted(self.capabilities(alias).items()):
                terminalreporter.write_line(f"{alias:<24} {name:<22} {verdict}")


def capabilities_of(rows: Iterable[CaseResult]) -> dict[str, str]:
    """`"proven"`, `"failed"`, `"not declared"` or `"not tested"` by the name of each capability that a row needs."""
    outcomes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for flag in row.needs or ():
            outcomes[str(flag.name)].add(_verdict(row))
    order = ("failed", "proven", "not declared", "not tested")
    return {name: next(verdict for verdict in order if verdict in found) for name, found in outcomes.items()}


def report_of(config: pytest.Config) -> ConformanceReport:
    """The report of this run of pytest; made when it is first asked for."""
    report: ConformanceReport | None = config.pluginmanager.get_plugin(_NAME)
    if report is None:
        given = [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, ConformanceReport)]
        report = given[0] if given else ConformanceReport()
        if not given:
            config.pluginmanager.register(report, _NAME)
    return report


def _run_alone(item: pytest.Function, arguments: dict[str, Any]) -> str | None:
    item.cls.is_alone = True
    try:
        item.obj(**arguments)
    except pytest.skip.Exception as skipped:
        return skipped.msg
    return None


def _verdict(row: CaseResult) -> str:
    if row.outcome == "skipped":
        return "not declared" if "does not declare" in row.reason else "not tested"
    return {"passed": "proven", "failed": "failed", "xfailed": "failed"}.get(row.outcome, "not tested")


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # file, line and message of a skip
        return report.longrepr[2].removeprefix("Skipped: ")
    if isinstance(report.longrepr, str):  # a known failure that has passed
        return report.longrepr
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash is not None and crash.message else ""
