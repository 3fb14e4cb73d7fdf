"""A package's card: the newest results of the kit for each of its plugins, on each kind of
device.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["merged", "results_of", "write"]

_KEY = ("kind", "alias", "provider", "ground")
_FAILURES = ("failed", "xfailed")
_DEVICE_TESTS = (
    "test_computes",
    "test_computes_in_its_format",
    "test_trains",
    "test_training_equals_one_device",
)
"""Tests that show that a device is there; the others pass without one too."""


def results_of(report: Mapping[str, Any], *, by: str = "") -> Iterator[dict[str, Any]]:
    """The results that a card keeps of a report, a plugin at a time.

    Args:
        report: of the kit, as `core check --json` prints it.
        by: who has run it.
    """
    seen = set()
    for suite in report["suites"]:
        key = {name: suite[name] for name in _KEY}
        # a package's first suite of an alias is the one of its defaults
        if tuple(key.values()) in seen:
            continue
        seen.add(tuple(key.values()))
        yield {
            **key,
            **{
                "version": suite["version"],
                "files": report["files"].get(suite["provider"], ""),
                "by": by,
            },
            **{
                "date": report["date"],
                "versions": report["versions"],
                "capabilities": suite["capabilities"],
            },
            **_outcomes(suite["tests"]),
            "mutants": _mutants_excluded(suite["kind"], suite["tests"]),
        }


def _outcomes(tests: list[dict[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(test["outcome"] for test in tests)
    names = {test["name"].partition("[")[0] for test in tests if test["outcome"] != "skipped"}
    failed = [test for test in tests if test["outcome"] in _FAILURES]
    return {
        "outcomes": {outcome: outcomes[outcome] for outcome in ("passed", *_FAILURES)},
        # A smoke test of a preset has no such test, not even one that is skipped.
        "is_whole": any(
            test["name"].startswith("test_training_equals_one_device") for test in tests
        ),
        "met_device": not names.isdisjoint(_DEVICE_TESTS),
        "failures": [
            [test["outcome"], test["reason"].partition("\n")[0], test["name"]] for test in failed
        ],
    }


def _mutants_excluded(kind: str, tests: list[dict[str, Any]]) -> dict[str, int]:
    """How many of the kit's mutants of this kind fail a test that this plugin has passed, and how
    many there are.
    """
    known = _mutants().get(kind, {})
    passed = {test["name"] for test in tests if test["outcome"] == "passed"}
    excluded = sum(number for test, number in known.items() if test in passed)
    return {"excluded": excluded, "known": sum(known.values())}


@cache
def _mutants() -> dict[str, dict[str, int]]:
    """How many mutants each test catches, by kind of plugin and name of the test."""
    text = resources.files("core_testing").joinpath("mutants.json").read_text(encoding="utf-8")
    counts: dict[str, dict[str, int]] = json.loads(text)
    return counts


def merged(kept: Iterable[dict[str, Any]], found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest result of each plugin on each kind of device, in the order in which they first
    came.

    One that ran on no device gives way to one that did, also to an older one.
    """
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in [*kept, *found]:
        key = tuple(each[name] for name in _KEY)
        if key not in newest or each["met_device"] or not newest[key]["met_device"]:
            newest[key] = each
    met = {key[:3] for key, result in newest.items() if any(result["outcomes"].values())}
    return [
        each for key, each in newest.items() if any(each["outcomes"].values()) or key[:3] not in met
    ]


def write(path: Path, found: Iterable[dict[str, Any]]) -> None:
    """Write results into a card, in the place of older ones of the same plugins.

    Raises:
        ConfigurationError: what is there is no card, or it can't be written.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
        lines = ",\n".join(json.dumps(result) for result in merged(kept, found))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"results": [\n{lines}\n]}}\n', encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} isn't a card, or can't be written: {type(error).__name__}: {error}"
        ) from error
