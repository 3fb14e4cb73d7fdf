"""The kit catches what is wrong: every mutant fails the test that is there for it, and passes another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"

# Imported in a process of its own: the mutants register themselves.
DESCRIBE = f"""
import json, sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
from mutants import MUTANTS
from run_mutants import INSTALLED, find_problems, with_table
page = open({str(PAGE)!r}).read()
outcomes = json.load(open(sys.argv[1])) if len(sys.argv) > 1 else {{}}
print(json.dumps({{
    "number": len(MUTANTS) + len(INSTALLED),
    "problems": find_problems(outcomes, MUTANTS, INSTALLED),
    "page_is_new": with_table(page, MUTANTS) == page,
}}))
"""


def describe(*arguments):
    done = subprocess.run([sys.executable, "-c", DESCRIBE, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_caught(tmp_path):
    out = tmp_path / "outcomes.json"
    command = [sys.executable, str(HERE / "run_mutants.py"), "--json", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850)
    assert out.exists(), done.stdout + done.stderr
    found = describe(str(out))
    assert found["problems"] == [], done.stdout[-4000:]
    assert found["number"] >= 40


@pytest.mark.slow
def test_a_right_strategy_passes(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(HERE / "kits.ini"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"{HERE / 'kits.py'}::TestAveraging"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_page_has_the_table_of_today():
    assert describe()["page_is_new"], f"run: python {HERE.name}/run_mutants.py --write docs/conformance.md"
