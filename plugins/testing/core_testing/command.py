"""Runs suites for `core check`, in a process of its own, and reports each test in a line of
JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import Capability
from core.registry import CORE, REGISTRIES, plugin_manager, split_name
from core_testing.accelerator import AcceleratorConformance
from core_testing.checkpoint_io import CheckpointIOConformance
from core_testing.checkpoint_reader import CheckpointReaderConformance
from core_testing.click_command import CommandConformance
from core_testing.cluster_environment import ClusterEnvironmentConformance
from core_testing.conformance import Conformance
from core_testing.launcher import LauncherConformance
from core_testing.logger import LoggerConformance
from core_testing.precision import PrecisionConformance
from core_testing.report import CaseResult, ConformanceReport, capabilities_of
from core_testing.strategy import StrategyConformance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from core.contract import Spec

SUITES: dict[str, type[Conformance[Any]]] = {}
"""The suites of this run, by the name under which pytest collects them."""

_PLAIN: Mapping[str, type[Conformance[Any]]] = {
    suite.kind: suite
    for suite in (
        StrategyConformance,
        AcceleratorConformance,
        PrecisionConformance,
        CheckpointIOConformance,
        CheckpointReaderConformance,
        ClusterEnvironmentConformance,
        LauncherConformance,
        LoggerConformance,
        CommandConformance,
    )
}
_MODULE = "conformance"
_MODULE_OF_CORE = "core_testing.builtin"
_FILE = "from core_testing.command import SUITES\n\nglobals().update(SUITES)\n"
_SETTINGS = """
[pytest]
timeout = 300
markers =
    gpu: needs a GPU
    slow: takes long
"""


def main() -> None:
    """Run in a child of `core check`: reads a request from standard input, writes events to the
    pipe that it names.
    """
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    os.set_inheritable(request["pipe"], False)  # what a test starts must not keep it open
    os.environ.pop("PYTEST_ADDOPTS", None)
    with os.fdopen(request["pipe"], "w", encoding="utf-8") as pipe:
        reporter = _Reporter(pipe)
        try:
            _collect(request["plugins"], request["attributes"])
        except Exception:
            reporter.send("error", text=traceback.format_exc())
        else:
            pytest.main(
                [*_arguments(Path(request["folder"])), *request["arguments"]], plugins=[reporter]
            )
            reporter.send("end", suites=[_describe(name, reporter) for name in SUITES])
        # threads and exit handlers of a plugin don't get the chance to keep this process alive
        os._exit(0)


def _collect(plugins: Iterable[tuple[str, str]], attributes: Mapping[str, Any]) -> None:
    for kind, name in plugins:
        for suite in find_suites(kind, name, attributes):
            SUITES[f"Test_{len(SUITES)}_{re.sub(r'[^a-zA-Z0-9]', '_', name)}"] = suite


def find_suites(
    kind: str, name: str, attributes: Mapping[str, Any]
) -> Iterator[type[Conformance[Any]]]:
    """The suites that the plugin's package ships for it in its module `conformance`, or else the
    kind's own.

    Args:
        kind: a key of `core.contract.KINDS`.
        name: an alias, also in its qualified form.
        attributes: of the suites, such as `options`, set from outside.
    """
    spec = REGISTRIES[kind].spec(name)
    found = [
        suite
        for suite in _shipped(spec)
        if suite.kind == kind and split_name(suite.alias)[1] == spec.alias
    ]
    for suite in found or [_PLAIN[kind]]:
        own = {
            "alias": name,
            "is_shipped": suite in found,
            "source": f"{suite.__module__}:{suite.__qualname__}",
        }
        known = {key: value for key, value in attributes.items() if hasattr(suite, key)}
        yield type(suite.__name__, (suite,), own | known)


def _shipped(spec: Spec) -> list[type[Conformance[Any]]]:
    package = spec.target.partition(":")[0].partition(".")[0]
    module = _MODULE_OF_CORE if spec.provider == CORE else f"{package}.{_MODULE}"
    try:
        if find_spec(module) is None:
            return []
    except ModuleNotFoundError:  # the provider is one file, and no package
        return []
    values = vars(import_module(module)).values()
    return [
        value
        for value in values
        if isinstance(value, type) and issubclass(value, Conformance) and value.alias
    ]


def _arguments(folder: Path) -> list[str]:
    file, settings = folder / "test_suites.py", folder / "pytest.ini"
    file.write_text(_FILE)
    settings.write_text(_SETTINGS)
    # its report has the tests in their order
    without = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    return ["-q", "--tb=short", *without, "-c", str(settings), "--rootdir", str(folder), str(file)]


class _Reporter(ConformanceReport):
    """Reports every test when it is over."""

    def __init__(self, pipe: Any) -> None:
        super().__init__()
        self._pipe = pipe
        self._details: dict[str, str] = {}

    def send(self, event: str, **content: Any) -> None:
        """Write one event. If `core check` was killed, nobody reads it, and what runs the kit ends
        too.
        """
        try:
            self._pipe.write(json.dumps({"event": event, **content}) + "\n")
            self._pipe.flush()
        except BrokenPipeError:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def rows_of(self, suite: str) -> list[CaseResult]:
        """The rows of one suite, by its name in `SUITES`."""
        return [row for nodeid, row in self.rows.items() if suite_of(nodeid) == suite]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """So many tests will run."""
        self.send("collected", number=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A suite that can't be collected."""
        if report.failed:
            self.send("error", text=report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.send("begin", name=nodeid.rpartition("::")[2])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the traceback of a failure."""
        super().pytest_runtest_logreport(report)
        if report.failed:
            self._details[report.nodeid] = report.longreprtext

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test is over, its teardown too."""
        name, details = nodeid.rpartition("::")[2], self._details.get(nodeid, "")
        row = self.rows.get(nodeid) or CaseResult(
            "", name, None, "failed" if details else "skipped"
        )
        test = {
            "suite": suite_of(nodeid),
            "name": name,
            "needs": [str(flag.name) for flag in row.needs or ()],
            "outcome": row.outcome,
            "reason": row.reason,
            "details": details,
            "duration_s": row.duration_s,
        }
        self.send("test", test=test)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print nothing: `core check` prints the summary."""


def suite_of(nodeid: str) -> str:
    """Name of the class in `"file::class::test"`."""
    return nodeid.split("::")[1]


def _describe(name: str, reporter: _Reporter) -> dict[str, Any]:
    """A report's entry for a suite that has run."""
    suite: Any = SUITES[name]
    spec = REGISTRIES[suite.kind].spec(suite.alias)
    return {
        "suite": name,
        "kind": suite.kind,
        "alias": spec.alias,
        "provider": spec.provider,
        "version": plugin_manager().version(spec.provider),
        "source": suite.source,
        "ground": _ground(suite),
        "num_processes": getattr(suite, "num_processes", 1),
        "capabilities": _capabilities(suite, reporter.rows_of(name)),
    }


def _ground(suite: Any) -> str:
    """The device of a suite: what it says, or the accelerator's name, or `"simulated"` for a
    scheduler's variables.
    """
    if suite.ground is not None:
        return str(suite.ground)
    if suite.kind == "cluster environment":
        return "simulated" if suite.variables else "cpu"
    return (
        split_name(suite.alias)[1]
        if suite.kind == "accelerator"
        else str(getattr(suite, "accelerator", "cpu"))
    )


def _capabilities(suite: Any, rows: list[CaseResult]) -> dict[str, str]:
    """The verdicts on all capabilities, also on those that no test needs."""
    verdicts = capabilities_of(rows)
    declared: Capability | None = None
    with suppress(Exception):  # it can't even be made, which a test has said already
        declared = suite().declared()
    if declared is not None:
        for flag in Capability:
            verdicts.setdefault(
                str(flag.name), "not tested" if flag in declared else "not declared"
            )
    return dict(sorted(verdicts.items()))
