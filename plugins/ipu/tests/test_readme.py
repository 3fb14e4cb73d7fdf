"""The program of the README, on simulated IPUs."""

import os
import re
import sys
from pathlib import Path

from core_testing import programs


def test_the_readmes_program_prints_what_stands_below_it(simulator, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "README.md").read_text()
    program, output = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL
    ).groups()
    (tmp_path / "program.py").write_text(program)
    # The server of all tests starts it: `sys.path` is theirs, and a variable has the simulator.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != simulator])
    variables = os.environ | {"PYTHONPATH": simulator}
    done = programs.run([sys.executable, tmp_path / "program.py"], env=variables, timeout=200)
    assert (done.returncode, done.stdout) == (0, output), done.stderr
