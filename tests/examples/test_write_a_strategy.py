"""docs/write-a-strategy.md, followed by the letter (followed.py).

A command ends with code 0, unless what is shown of it tells that something has failed.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from examples.followed import prints, steps

TIMEOUT_S = 1200

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


def test_a_reader_who_follows_the_page_succeeds(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "write-a-strategy.md"
    # A virtual environment of its own, which sees core, torch and the kit where they are.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (site / "parent.pth").write_text("\n".join(path for path in sys.path if path))
    binaries = tmp_path / "venv" / "bin"
    (binaries / "core").write_text(f'#!/bin/sh\nexec "{binaries}/python" -m core "$@"\n')
    (binaries / "core").chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CORE_", "PYTHON", "PYTEST_"))
    }
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = (
        kept | offline | {"PATH": f"{binaries}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    )
    folder = tmp_path / "work"
    folder.mkdir()
    for kind, what, text in steps(page.read_text(encoding="utf-8")):
        if kind == "file":
            assert "/" not in what or (folder / what).exists(), f"{what} replaces nothing"
            (folder / what).write_text(text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", what],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        told = f"$ {what}\n{done.stdout}{done.stderr}"
        assert (done.returncode == 0) == ("failed" not in text), told
        assert prints(text, done.stdout), f"{told}\nshown:\n{text}"
