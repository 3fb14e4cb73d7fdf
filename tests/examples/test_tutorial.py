"""docs/tutorial.md, followed by the letter (followed.py), in one folder; what it installs is here
already.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core_testing import programs
from examples.followed import prints, steps

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
PRELOAD = f"{programs.PRELOAD},sklearn.datasets"
INSTALLS = ("python -m venv", "python -m pip", "cd ")
LIBRARIES = {
    "publish.py": ["huggingface_hub", "safetensors"],
    "export.py": ["onnxscript", "onnxruntime"],
}


def commands(folder):
    """The files are written; each command with what is shown of its output, unless it installs."""
    for kind, what, text in steps(PAGE.read_text(encoding="utf-8")):
        if kind == "file":
            (folder / what).write_text(text, encoding="utf-8")
        elif not what.startswith(INSTALLS):
            yield what, text


def run(command, folder):
    program, *arguments = command.split()
    starter = programs.CORE if program == "core" else (sys.executable,)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return programs.run([*starter, *arguments], cwd=folder, env=env, timeout=120, preload=PRELOAD)


@pytest.mark.slow
@pytest.mark.numbers
def test_a_reader_who_follows_the_page_succeeds(tmp_path):
    """Up to the exports, which import libraries of several seconds."""
    row_of = re.compile(r"^ +(\d+) +(\d+) +\d+:\d\d +\S+ +(\S+) +(\S+)$", re.M)

    def rows(output):
        return [number for row in row_of.findall(output) for number in map(float, row)]

    outputs = {}
    for command, shown in commands(tmp_path):
        if command.partition(" ")[2] not in LIBRARIES:
            done = run(command, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert prints(shown, done.stdout), f"$ {command}\n{done.stdout}\nshown:\n{shown}"
            outputs[command] = done.stdout
    alone, two = (
        rows(outputs[command]) for command in ("python train.py", "python train.py --devices 2")
    )
    assert len(alone) == 3 * len(("epoch", "step", "loss", "accuracy"))
    assert two == pytest.approx(alone, rel=1e-3)
    assert alone == pytest.approx(rows(PAGE.read_text(encoding="utf-8"))[: len(alone)], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("program", LIBRARIES)
def test_the_model_is_handed_on(program, tmp_path):
    def missing(command):
        return [
            name
            for library in command.split()
            for name in LIBRARIES.get(library, ())
            if not find_spec(name)
        ]

    if lacking := missing(program):
        pytest.skip(f"needs {lacking[0]}, which the page installs at this step")
    needed = (
        "python train.py",
        "python train.py --devices 2",
        "python train.py --resume",
        f"python {program}",
    )
    for command, shown in commands(tmp_path):
        if command.startswith(needed):
            done = run(command, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert prints(shown, done.stdout), f"$ {command}\n{done.stdout}\nshown:\n{shown}"
