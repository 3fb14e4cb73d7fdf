"""Runs the conformance kit in a child process, where a plugin that hangs, exits or crashes does no
harm.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core import ConfigurationError, PluginLoadError, __version__
from core.cli import with_article

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from core import Spec

_CHILD = "from core_testing.command import main; main()"
_LAST_WORDS = 4000
_GRACE_S = 10


@dataclass(frozen=True, slots=True)
class Test:
    """One test that has run.

    Attributes:
        suite: to which it belongs.
        name: with its parameter in brackets.
        needs: names of the capabilities that it tests.
        outcome: `"passed"`, `"failed"`, `"skipped"`, or `"xfailed"` for a known failure.
        reason: of a failure, a skip or a known failure, on one line.
        details: the traceback of a failure.
        duration_s: in seconds.
    """

    suite: str
    name: str
    needs: list[str]
    outcome: str
    reason: str = ""
    details: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Suite:
    """The results of a plugin's suite.

    Attributes:
        suite: its name in this run.
        kind: of plugin.
        alias: of the plugin.
        provider: the distribution that offers it.
        version: of the provider.
        source: `"module:Class"` of the suite.
        ground: the ground that it ran on: `"cpu"`, the name of another accelerator, or
            `"simulated"`.
        num_processes: that it ran in.
        capabilities: `"proven"`, `"failed"`, `"not declared"` or `"not tested"`, by name.
        tests: in the order in which they ran.
    """

    suite: str
    kind: str
    alias: str
    provider: str
    version: str
    source: str
    ground: str
    num_processes: int
    capabilities: dict[str, str]
    tests: list[Test]

    def count(self) -> Counter[str]:
        """Number of tests by outcome."""
        return Counter(test.outcome for test in self.tests)

    @property
    def is_good(self) -> bool:
        """True if something was proven, and nothing failed, not even as it is known to."""
        outcomes = {test.outcome for test in self.tests}
        return "passed" in outcomes and outcomes <= {"passed", "skipped"}

    @property
    def title(self) -> str:
        """The plugin's alias, kind, distribution and version."""
        return f"{self.alias}: {with_article(self.kind)} of {self.provider} {self.version}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All that a run of the kit has found.

    Attributes:
        suites: one a plugin, or more.
        duration_s: in seconds.
        files: by distribution, the digest of the files that were tested.
        date: when it ended, `"2026-01-31"`.
        versions: of core, torch, Python and the machine, by name.
    """

    suites: list[Suite]
    duration_s: float
    files: dict[str, str]
    date: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).date().isoformat()
    )
    versions: dict[str, str] = field(
        default_factory=lambda: {
            "core": __version__,
            "core-testing": version("core-testing"),
            "torch": version("torch"),
            "Python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
        }
    )

    @property
    def is_good(self) -> bool:
        """True if something was proven and nothing failed."""
        outcomes = {test.outcome for suite in self.suites for test in suite.tests}
        return "passed" in outcomes and "failed" not in outcomes


class EventReceiver(Protocol):
    """The receiver of events while tests run."""

    def collected(self, number: int) -> None:
        """Receive the number of tests that will run."""

    def begin(self, name: str) -> None:
        """Receive the name of a test that begins."""

    def end(self, test: Test) -> None:
        """Receive the test that has ended."""


def run(
    specs: Sequence[tuple[str, Spec]],
    progress: EventReceiver,
    *,
    keyword: str = "",
    attributes: Mapping[str, Any],
) -> CheckResult:
    """Run the suites of some plugins.

    Args:
        specs: what to test, each with the name that the user has for it.
        progress: is called for each test.
        keyword: only tests that match this expression of pytest's `-k`.
        attributes: of the suites, such as `{"options": {...}}`.

    Raises:
        ConfigurationError: the kit's requirements aren't installed, or nothing matches `keyword`.
        PluginLoadError: a suite can't be imported, or the process has died.
    """
    _need_pytest()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="core-check-") as folder:
        request = {
            "path": sys.path,
            "folder": folder,
            "plugins": [[spec.kind, name] for name, spec in specs],
            "arguments": ["-k", keyword] if keyword else [],
            "attributes": dict(attributes),
        }
        tests: list[Test] = []
        found: list[dict[str, Any]] = []
        with contextlib.closing(_events(request, Path(folder))) as events:
            for event in events:
                _note(event, progress, tests, found)
    if not tests:
        raise ConfigurationError(
            f"No test matches -k {keyword!r}. Leave it out to see the names of all."
        )
    ran = {test.suite for test in tests}
    suites = [
        Suite(**each, tests=[test for test in tests if test.suite == each["suite"]])
        for each in found
    ]
    return CheckResult(
        [suite for suite in suites if suite.suite in ran], time.monotonic() - begin, _digests(specs)
    )


def _digests(specs: Sequence[tuple[str, Spec]]) -> dict[str, str]:
    """A digest of each package's files; none with a core from before the first release, which has
    no cards.
    """
    try:
        from core.cli import files_digest, package_folder
    except ImportError:
        return {}
    folders = {spec.provider: package_folder(spec.target) for _, spec in specs}
    return {
        provider: files_digest(folder) for provider, folder in folders.items() if folder is not None
    }


def _need_pytest() -> None:
    if missing := [
        name for name in ("pytest", "pytest_timeout") if importlib.util.find_spec(name) is None
    ]:
        raise ConfigurationError(
            f"The conformance kit needs {missing[0].replace('_', '-')}, which is not installed: "
            f"pip install {missing[0].replace('_', '-')}"
        )


def _note(
    event: dict[str, Any], progress: EventReceiver, tests: list[Test], found: list[dict[str, Any]]
) -> None:
    kind = event["event"]
    if kind == "collected":
        progress.collected(event["number"])
    elif kind == "begin":
        progress.begin(event["name"])
    elif kind == "test":
        tests.append(Test(**event["test"]))
        progress.end(tests[-1])
    elif kind == "error":
        raise PluginLoadError(f"The suites can't be collected:\n{event['text']}")
    else:
        found.extend(event["suites"])


def _events(request: dict[str, Any], folder: Path) -> Generator[dict[str, Any]]:
    """Yield the child's events until it ends.

    Raises:
        PluginLoadError: it has ended before its time.
    """
    reading, writing = os.pipe()
    log = folder / "output"
    with log.open("w") as output, os.fdopen(reading, encoding="utf-8") as pipe:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
            pass_fds=[writing],
            # An import that asks for CUDA's devices by its driver would leave none to the forks
            # that run the tests.
            env=os.environ | {"TMPDIR": str(folder), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
            start_new_session=True,
        )
        # The child's is the only one left, so that reading ends when the child does.
        os.close(writing)
        assert child.stdin is not None
        # so that the child ends too
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin as asking:
                asking.write(json.dumps({**request, "pipe": writing}))
            for line in pipe:
                event = json.loads(line)
                yield event
                if event["event"] == "end":
                    return
        finally:
            _end(child)
            signal.signal(signal.SIGTERM, before)
    words = log.read_text(errors="replace").strip()[-_LAST_WORDS:]
    raise PluginLoadError(
        f"The process that runs the kit ended early, with code {child.returncode}:\n{words}"
    )


def _end(child: subprocess.Popen[str]) -> None:
    """Wait for its end; interrupt it if it doesn't, so that it cleans up; and leave nothing of it
    behind.
    """
    # One second to end by itself, and after the interrupt as long as a fixture needs to clean up.
    for ending in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1 if ending is signal.SIGINT else _GRACE_S)
            break
        _signal(child, ending)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[str], ending: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, ending)
