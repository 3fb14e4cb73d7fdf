"""The kit catches what is wrong: every mutant fails the test that is there for it, and passes
another one.
"""

import functools
import json
import os
import sys
from pathlib import Path

import pytest

from core_testing import programs
from support.checkout import KITS

HERE = Path(__file__).parent
PAGE = HERE / "mutants.md"

# Imported in a process of its own: the mutants register themselves.
DESCRIBE = f"""
import json, sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[2] / "tests")!r}]
from run_mutants import COUNTS, INSTALLED, MUTANTS, counts, find_problems, untested, with_table
page = open({str(PAGE)!r}).read()
outcomes = json.load(open(sys.argv[1])) if len(sys.argv) > 1 else {{}}
print(json.dumps({{
    "number": len(MUTANTS) + len(INSTALLED),
    "untested": sorted(untested()),
    "problems": find_problems(outcomes, MUTANTS, INSTALLED),
    "page_is_new": with_table(page) == page,
    "counts_are_new": counts() == COUNTS.read_text(),
}}))
"""


def run(*command, timeout=280):
    path = os.pathsep.join([str(HERE), *sys.path])
    return programs.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}, timeout=timeout
    )


@functools.cache
def describe(*arguments):
    done = run(sys.executable, "-c", DESCRIBE, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_caught(tmp_path):
    out = tmp_path / "outcomes.json"
    done = run(sys.executable, HERE / "run_mutants.py", "--json", out, timeout=850)
    assert out.exists(), done.stdout + done.stderr
    found = describe(str(out))
    assert found["problems"] == [], done.stdout[-4000:]
    assert found["number"] >= 217


def test_every_test_has_a_mutant():
    """One of its own kind, or where all kinds share the test, of any."""
    assert describe()["untested"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "TestAveraging",
        "TestCompressing::test_ranks_agree_in_time",
        "TestLocal::test_ranks_agree_in_time",
    ],
)
def test_a_right_strategy_passes(name):
    suite = f"{HERE / 'kits.py'}::{name}"
    done = run(*programs.PYTEST, "-q", "-c", KITS, "-p", "no:cacheprovider", suite)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("what", ["page_is_new", "counts_are_new"])
def test_page_and_cards_know_the_mutants_of_today(what):
    assert describe()[what], f"run: python {HERE.name}/run_mutants.py --write mutants.md"
