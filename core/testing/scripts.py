"""Runs a script as a user does: in an interpreter of its own, on what is importable here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def run_script(program: Path, text: str, arguments: list[Any], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Write a script and run it in its folder.

    Args:
        program: path of the script.
        text: its source.
        arguments: what it finds in `sys.argv[1]`, as JSON.
        timeout_s: after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it has not ended by then.
    """
    program.write_text(text)
    return subprocess.run(
        [sys.executable, str(program), json.dumps(arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
