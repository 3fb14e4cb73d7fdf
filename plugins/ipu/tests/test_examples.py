"""The examples, and the program of the README, on simulated IPUs."""

import re
from pathlib import Path

import pytest
from ipu_runs import run_program

PLUGIN = Path(__file__).parents[1]
EXAMPLES = PLUGIN.parents[1] / "examples"


def test_the_readmes_program_prints_what_stands_below_it(simulator, tmp_path):
    page = (PLUGIN / "README.md").read_text()
    program, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    (tmp_path / "program.py").write_text(program)
    done = run_program([tmp_path / "program.py"], simulator)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


@pytest.mark.slow
def test_digits_are_read(simulator):
    options = ["--accelerator", "ipu", "--devices", "2", "--epochs", "3"]
    done = run_program([EXAMPLES / "digits.py", *options], simulator)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"not trained on: ([\d.]+)% \(1 process\)", done.stdout)
    assert float(accuracy[1]) > 90
