"""docs/support.md tells of every alias that its packages offer, and its tables can be made."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from core import KINDS
from core.registry import Status, listing

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "support.md"


def test_the_page_tells_of_every_alias():
    shown = re.compile(r"^\| (`[^|]+`) \| (core[\w-]*) \|", re.MULTILINE)
    in_part = {"core-deepspeed"}  # all stages take an hour
    told_rows = shown.findall(PAGE.read_text())
    told = {
        (alias, package)
        for aliases, package in told_rows
        for alias in re.findall("`([^`]+)`", aliases)
    }
    packages = {package for _, package in told} - in_part
    # the kit has nothing for commands
    rows = [row for kind in KINDS if kind != "command" for row in listing(kind)]
    offered = {
        (row.alias, row.provider)
        for row in rows
        if row.provider in packages and row.status is Status.OK
    }
    missing = sorted(offered - told)
    assert not missing, (
        f"python tests/conformance/write_support.py PACKAGE runs the kit on these: {missing}"
    )


def written(folder, *sources, root):
    (folder / "support.md").touch()
    command = [sys.executable, HERE / "write_support.py", "--page", folder / "support.md"]
    subprocess.run([*command, "--root", root, *map(str, sources)], check=True)
    return (folder / "support.md").read_text()


def test_the_page_is_what_its_records_say(tmp_path):
    shutil.copy(PAGE, tmp_path)
    assert written(tmp_path, root=HERE.parents[1]) == PAGE.read_text(), (
        "run tests/conformance/write_support.py"
    )


def test_the_page_is_made_of_reports(tmp_path):
    def test(name, outcome, needs=(), reason=""):
        return {"name": name, "outcome": outcome, "needs": list(needs), "reason": reason}

    def suite(alias, ground, tests, kind="strategy", **capabilities):
        names = {
            "kind": kind,
            "alias": alias,
            "provider": "core-acme",
            "ground": ground,
            "version": "1.0",
        }
        return {**names, "tests": tests, "capabilities": capabilities}

    def page(date, *suites, **more):
        report = {
            "date": date,
            "versions": {"core": "1.0", "torch": "3.0"},
            "files": {},
            "suites": suites,
        }
        (tmp_path / "report.json").write_text(
            json.dumps({"small": False, "kit": [report]} if more else report)
        )
        return written(tmp_path, tmp_path / "report.json", root=tmp_path)

    trained = test("test_training_equals_one_device[adam]", "passed")
    several = test("test_x", "failed", ["SEVERAL_MODULES"], "a | b\nsecond line")
    text = page(
        "2026-01-31",
        suite("acme", "cuda", [trained, several], SEVERAL_MODULES="failed", ELASTIC="not declared"),
        suite("acme_fast", "cpu", [trained, test("test_y", "xfailed")]),
        suite("acme_fast", "cpu", [trained, test("test_of_other_options", "passed")]),
        suite("acme_slow", "acme", [test("test_trains", "skipped")]),
        suite("acme", "simulated", [test("test_knows_its_place", "passed")], "cluster environment"),
    )
    assert "- 2026-01-31: core 1.0, torch 3.0" in text
    assert (
        "| `acme` | core-acme | hardware: cuda | 1 of 2, **1 failed** | | `SEVERAL_MODULES` "
        "**fails** |" in text
    )
    assert "| `acme_fast` | core-acme | CPU | 1 of 2, 1 known to fail |" in text
    assert "| `acme_slow` | core-acme | not run | none ran |" in text
    assert "| `acme` | core-acme | simulated | 1 of 1 |" in text
    assert r"| `acme` | **fails** | `test_x` | a \| b |" in text
    assert "ELASTIC" not in text

    again = suite("acme_slow", "simulated", [test("test_trains", "passed")])
    newer = "2026-02-01", suite("acme", "cuda", [trained], SEVERAL_MODULES="proven"), again
    text = page(*newer)
    assert "| `acme` | core-acme | hardware: cuda | 1 of 1 | S | |" in text, (
        "the newest result counts"
    )
    assert "| `acme_fast` | core-acme | CPU | 1 of 2, 1 known to fail |" in text, "others stay"
    assert "not run" not in text, "one that ran on no device gives way"
    assert page(*newer, of_a_gpu=True) == text, (
        "a report of benchmarks/gpu.py has those of the kit in it"
    )
