"""README and docs say what is true: programs run and print what stands below them, and links lead
somewhere.

A Python block that imports `core` is a program: it runs in a process and a folder of its own, and
if a `text` block follows, that is its output. Other Python blocks are fragments, which have to be
Python; so are those that import nothing but the conformance kit, which does something under pytest
only.
"""

import ast
import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from core_testing import programs
from support.printed import lines_of

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARIES = {
    "colossalai": "colossalai",
    "deepspeed": "deepspeed",
    '"xla': "torch_xla",
    "XLA": "torch_xla",
    "hivemind": "hivemind",
    "Hivemind": "hivemind",
    '"horovod"': "horovod",
    "Horovod": "horovod",
    "core_aim": "aim",
    "core_comet": "comet_ml",
    "core_monarch": "monarch",
    "core_ray": "ray",
    "core_trackio": "trackio",
    'plugins="monarch"': "monarch",
    'plugins="ray"': "ray",
}
"""Libraries of plugins that a program with these words needs."""

EXTRAS = {
    "cli_for": "jsonargparse",
    "TensorBoardLogger": "tensorboard",
    "import optuna": "optuna",
    "from transformers": "transformers",
}
"""Libraries of which the page says how to install them, likewise."""


@dataclass(frozen=True)
class Block:
    """A fenced block, and the block that follows it directly."""

    page: Path
    line: int
    language: str
    text: str
    output: str | None

    @property
    def is_program(self) -> bool:
        imports_core = (
            re.search(r"^\s*(from|import) core(?!_testing)", self.text, re.MULTILINE) is not None
        )
        return imports_core or self.output is not None

    @property
    def needs_devices(self) -> bool:
        """GPUs, or those of which core-hpu's and core-ipu's own tests simulate some."""
        is_on_gpus = '"cuda"' in self.text and torch.cuda.device_count() < 2
        return is_on_gpus or re.search('accelerator="[hi]pu"', self.text) is not None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page):
    content = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(content))
    for fence, following in zip_longest(fences, fences[1:]):
        follows = following is not None and not content[fence.end() : following.start()].strip()
        output = following[2] if follows and following[1] == "text" else None
        yield Block(page, content.count("\n", 0, fence.start()) + 1, fence[1], fence[2], output)


# The blocks of these pages are steps, which test_tutorial.py and test_write_a_strategy.py take one
# after the other.
BLOCKS = [
    block
    for page in PAGES
    if page.name not in ("tutorial.md", "write-a-strategy.md")
    for block in blocks_of(page)
]
PYTHON = [block for block in BLOCKS if block.language == "python"]
PROGRAMS = [block for block in PYTHON if block.is_program]
LACKING = {
    block: name
    for block in PROGRAMS
    for word, name in (LIBRARIES | EXTRAS).items()
    if word in block.text and not find_spec(name)
}
RUN_HERE = [block for block in PROGRAMS if block not in LACKING and not block.needs_devices]
COMMANDS = [
    block for block in BLOCKS if block.language == "console" and block.text.startswith("$ core ")
]


def run(command, folder):
    done = programs.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_blocks_to_look_at():
    assert len(PROGRAMS) > 5
    assert any(block.output for block in PROGRAMS)
    assert COMMANDS


@pytest.mark.numbers
@pytest.mark.parametrize("block", RUN_HERE, ids=str)
def test_a_program_runs_and_prints_what_stands_below_it(block, tmp_path):
    clock = re.compile(r"\b\d+:\d\d\b")

    def comparable(output):
        """Lines without trailing blanks; those that tell a time, which each machine has its own of,
        without numbers.
        """
        lines = (line.rstrip() for line in lines_of(output))
        return [
            re.sub(r"[\d.e-]+", "#", " ".join(line.split())) if clock.search(line) else line
            for line in lines
        ]

    program = tmp_path / "program.py"
    program.write_text(block.text, encoding="utf-8")
    strict = (
        () if any(word in block.text for word in LIBRARIES) else ("-W", "error")
    )  # to import them warns of what torch deprecates
    output = run([sys.executable, *strict, program], tmp_path)
    if block.output is not None:
        assert comparable(output) == comparable(block.output)


def test_programs_of_libraries_that_are_not_here():
    """A tox environment of its own has most of them; the pages say how to install the others."""
    if LACKING:
        pytest.skip(
            f"need {', '.join(sorted({*LACKING.values()}))}: {', '.join(map(str, LACKING))}"
        )


@pytest.mark.parametrize("block", [block for block in PYTHON if not block.is_program], ids=str)
def test_a_fragment_is_python(block):
    ast.parse(block.text)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=[pytest.mark.slow] * ("core check" in block.text))
        for block in COMMANDS
    ],
    ids=str,
)
def test_a_command_prints_what_stands_below_it(block, tmp_path):
    """Lines that are left out are shown as dots; columns are as wide as what else is installed
    needs.
    """
    first, *shown = block.text.splitlines()
    _, *arguments = shlex.split(first.removeprefix("$ "))
    printed = [line.split() for line in run([*programs.CORE, *arguments], tmp_path).splitlines()]
    assert not [line for line in shown if line != "..." and line.split() not in printed]
