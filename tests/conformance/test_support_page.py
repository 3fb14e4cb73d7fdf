"""docs/support.md tells of every alias that its packages offer, and its tables can be made."""

import json
import re
import subprocess
import sys
from pathlib import Path

from core import KINDS
from core.registry import Status, listing

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "support.md"
IN_PART = {"core-deepspeed"}  # all stages and their offloaded forms take an hour
ROW = re.compile(r"^\| `([^`]+)` \| (core[\w-]*) \|", re.MULTILINE)


def test_the_page_tells_of_every_alias():
    told = set(ROW.findall(PAGE.read_text()))
    packages = {package for _, package in told} - IN_PART
    rows = [row for kind in KINDS for row in listing(kind)]
    offered = {(row.alias, row.provider) for row in rows if row.provider in packages and row.status is Status.OK}
    missing = sorted(offered - told)
    assert not missing, f"run the kit on these, and write_support.py again: {missing}"


def test_the_page_is_made_of_reports(tmp_path):
    def test(name, outcome, needs=(), reason=""):
        return {"name": name, "outcome": outcome, "needs": list(needs), "reason": reason}

    def suite(kind, alias, ground, tests, **capabilities):
        return {
            **{"kind": kind, "alias": alias, "provider": "core-acme", "ground": ground, "tests": tests},
            "capabilities": capabilities,
        }

    trained = test("test_training_equals_one_device[adam]", "passed")
    several = test("test_x", "failed", ["SEVERAL_MODULES"], "a | b\nsecond line")
    suites = [
        suite("strategy", "acme", "cuda", [trained, several], SEVERAL_MODULES="failed", ELASTIC="not declared"),
        suite("strategy", "acme_fast", "cpu", [trained]),
        suite("accelerator", "mps", "mps", [test("test_detects", "passed"), test("test_computes", "skipped")]),
        suite("cluster environment", "acme", "simulated", [test("test_knows_its_place", "passed")]),
    ]
    report = {"date": "2026-01-31", "versions": {"core": "1.0", "torch": "3.0"}, "suites": suites}
    (tmp_path / "report.json").write_text(json.dumps(report))
    page = tmp_path / "support.md"
    subprocess.run([sys.executable, HERE / "write_support.py", page, tmp_path / "report.json"], check=True)
    text = page.read_text()
    assert "- 2026-01-31: core 1.0, torch 3.0" in text
    assert "| `acme` | core-acme | hardware: cuda | 1 of 2, **1 failed** | **no** |" in text
    assert "| `acme_fast` | core-acme | CPU | 1 of 1 |" in text
    assert "| `mps` | core-acme | simulated ([tests](../tests/accelerators)) | 1 of 1 |" in text
    assert "| `acme` | core-acme | simulated | 1 of 1 |" in text
    assert r"| `acme` | **fails** | `test_x` | a \| b |" in text
    assert "ELASTIC" not in text
