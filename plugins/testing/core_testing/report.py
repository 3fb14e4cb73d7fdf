"""The capabilities that were proven: collected while the tests run, and printed as a table at the
end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

from core_testing.ranks import end_kept_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core import Capability
    from core_testing.conformance import Conformance

_NAME = "core-conformance"
_KIT = "core_testing."
_FIXTURES = ("request", "folder", "tmp_path", "tmp_path_factory", "_gate")


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
        suites: those that pytest has collected.
        is_whole: keep tests that can't apply, to tell of each. True for a report that was given to
            pytest; the one that suites register makes pytest collect none of them, and one of those
            for which a device is missing.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self.rows: dict[str, CaseResult] = {}
        self.suites: set[type[Conformance[Any]]] = set()
        self.is_whole = is_whole

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what can't apply, with its reason in a row."""
        tests: list[Any] = (
            []
            if self.is_whole
            else [item for item in items if getattr(item, "cls", None) in self.suites]
        )
        absent: dict[Any, list[Any]] = defaultdict(list)
        out: dict[Any, str] = {}
        for item in tests:
            if reason := _if_known(partial(_why_not, item)):
                out[item] = reason
            elif _if_known(partial(_absent, item)):
                absent[item.parent].append(item)
        for lacking in absent.values():
            # The first of them says so.
            out |= dict.fromkeys(
                sorted(lacking, key=lambda item: item.nodeid)[1:], "what it needs isn't here"
            )
        for item, reason in out.items():
            needed = marked(item, "needs")
            self.rows[item.nodeid] = CaseResult(
                item.cls.alias, item.name, needed, "skipped", reason
            )
        if out:
            config.hook.pytest_deselected(items=list(out))
            items[:] = [item for item in items if item not in out]

    def begin(self, nodeid: str, alias: str, test: str, needs: Capability | None) -> None:
        """A test of a suite is about to run."""
        self.rows[nodeid] = CaseResult(alias, test, needs)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a test in a process of its own if its suite says `own_process`."""
        suite = pyfuncitem.instance
        # For pytest, True means that the test was run, None that it is pytest's to run.
        if not getattr(suite, "own_process", False) or getattr(
            pyfuncitem.function, "launches", False
        ):
            return None
        arguments = {
            name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters
        }
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
        row.outcome = (
            "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        )
        row.reason = getattr(report, "wasxfail", "") or _reason(report)
        row.duration_s = report.duration

    def capabilities(self, alias: str) -> dict[str, str]:
        """`"proven"`, `"failed"` or `"not declared"` by the name of each capability that the kit
        can test.
        """
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
    """`"proven"`, `"failed"`, `"not declared"` or `"not tested"` by the name of each capability
    that a row needs.
    """
    outcomes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for flag in row.needs or ():
            outcomes[str(flag.name)].add(_verdict(row))
    order = ("failed", "proven", "not declared", "not tested")
    return {
        name: next(verdict for verdict in order if verdict in found)
        for name, found in outcomes.items()
    }


def report_of(config: pytest.Config) -> ConformanceReport:
    """The report of this run of pytest; made when it is first asked for."""
    report: ConformanceReport | None = config.pluginmanager.get_plugin(_NAME)
    if report is None:
        given = [
            plugin
            for plugin in config.pluginmanager.get_plugins()
            if isinstance(plugin, ConformanceReport)
        ]
        report = given[0] if given else ConformanceReport(is_whole=False)
        if not given:
            config.pluginmanager.register(report, _NAME)
    return report


def marked(item: pytest.Function, mark: str) -> Capability | None:
    """The capabilities that a mark of the test and of its parameters names; None for no mark."""
    found: Capability | None = getattr(item.function, mark, None)
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        return found
    for value in parameters.params.values():
        if (more := getattr(value, mark, None)) is not None:
            found = more if found is None else found | more
    return found


def is_of_trainer(item: pytest.Function) -> bool:
    """True if a test, or a case that it is given, trains with core-training's Trainer."""
    parameters = getattr(item, "callspec", None)
    given = () if parameters is None else parameters.params.values()
    return any(getattr(each, "of_trainer", False) for each in (item.function, *given))


def is_of_the_kit(item: pytest.Function) -> bool:
    """True if the kit knows all that a test does: ranks that run already wouldn't see what an
    author's test patches.
    """
    callspec = getattr(item, "callspec", None)
    known = set(_FIXTURES)
    if callspec is not None:
        known.update(callspec.params)
    return item.function.__module__.startswith(_KIT) and known.issuperset(item.fixturenames)


def _why_not(item: Any) -> str | None:
    suite: Conformance[Any] = item.cls()
    return suite.why_not(item, suite.pinned) if suite.alias else None


def _absent(item: Any) -> str | None:
    """The reason why it can't run here, as far as that is known: an author's fixture may bring a
    simulated device.
    """
    if (skip := item.get_closest_marker("skip")) is not None:
        return str(skip.kwargs.get("reason", "skip"))
    suite: Conformance[Any] = item.cls()
    if not is_of_the_kit(item):
        return None
    return suite.absent(item.originalname) if suite.alias else f"{item.cls.__name__} names no alias"


def _if_known(read: Callable[[], str | None]) -> str | None:
    """None where the suite itself can't tell: then the test runs, and fails by that."""
    try:
        return read()
    except Exception:
        return None


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
    return {"passed": "proven", "failed": "failed", "xfailed": "failed"}.get(
        row.outcome, "not tested"
    )


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # file, line and message of a skip
        return report.longrepr[2].removeprefix("Skipped: ")
    if isinstance(report.longrepr, str):  # a known failure that has passed
        return report.longrepr
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash is not None and crash.message else ""
