"""docs/write-a-strategy.md, followed by the letter: its files are written, its commands run, and their output compared.

A block below a line that ends in a path and a colon is that file. In a console block, lines that begin with `$` are
commands, and the others what they print: `...` in a line stands for any text, and alone for any lines; blanks count as
one. A command ends with code 0, unless what is shown of it tells that something has failed.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "write-a-strategy.md"
BLOCK = re.compile(r"^(?:[^`\n]*`(?P<path>[\w./-]+)`:\n\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
TIMEOUT_S = 1200

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture
def environment(tmp_path):
    """Variables of a virtual environment of its own, which sees core, torch and the kit where they are."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (site / "parent.pth").write_text("\n".join(path for path in sys.path if path))
    binaries = tmp_path / "venv" / "bin"
    (binaries / "core").write_text(f'#!/bin/sh\nexec "{binaries}/python" -m core "$@"\n')
    (binaries / "core").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORE_", "PYTHON", "PYTEST_"))}
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return kept | offline | {"PATH": f"{binaries}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def steps(page):
    """("file", path, content) and ("command", command, what is shown of its output), in order."""
    for block in BLOCK.finditer(page):
        if block["path"] and block["language"] != "console":
            yield "file", block["path"], block["text"]
        elif block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
                command, _, shown = part.partition("\n")
                yield "command", command, shown


def pattern(shown):
    """A regular expression for what is shown, over lines of words."""
    parts = []
    for line in words(shown):
        text = re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " ")
        parts.append(r"(?:.*\n)*?" if line == "..." else f"{text}\n")
    return re.compile("".join(parts))


def words(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_a_reader_who_follows_the_page_succeeds(environment, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    for kind, what, text in steps(PAGE.read_text(encoding="utf-8")):
        if kind == "file":
            assert "/" not in what or (folder / what).exists(), f"{what} replaces nothing"
            (folder / what).write_text(text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", what], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        told = f"$ {what}\n{done.stdout}{done.stderr}"
        assert (done.returncode == 0) == ("failed" not in text), told
        assert pattern(text).fullmatch("".join(f"{line}\n" for line in words(done.stdout))), f"{told}\nshown:\n{text}"


def test_output_is_compared():
    assert pattern("a ... c\n...\nend\n").fullmatch("a b c\nd\ne\nend\n")
    assert not pattern("a ... c\n...\nend\n").fullmatch("a b c\nd\n")
    assert not pattern("5 passed\n").fullmatch("4 passed\n")
