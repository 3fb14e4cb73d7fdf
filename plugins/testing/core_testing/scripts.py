"""Runs scripts: each in an interpreter of its own, or in a fork of one that has imported what most
scripts import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from core_testing.programs import PRELOAD, run
from core_testing.waiting import slowness

if TYPE_CHECKING:
    from pathlib import Path


def run_script(
    program: Path, text: str, arguments: list[Any], *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Write a script and run it in its folder as a user does: in a new interpreter, on what is
    importable here.

    Args:
        program: path of the script.
        text: its source.
        arguments: what it finds in `sys.argv[1]`, as JSON.
        timeout_s: of a fast and idle machine (`core_testing.waiting`), after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it has not ended by then.
    """
    program.write_text(text)
    return subprocess.run(
        [sys.executable, str(program), json.dumps(arguments)],
        env=_variables(),
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=timeout_s * slowness(),
    )


def run_forked(
    program: Path,
    text: str,
    arguments: list[Any],
    *,
    timeout_s: float,
    preload: str = PRELOAD,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The same without the time that an interpreter and its imports take, where they aren't what is
    tested.

    Args:
        program: path of the script.
        text: its source.
        arguments: what it finds in `sys.argv[1]`, as JSON.
        timeout_s: of a fast and idle machine (`core_testing.waiting`), after which it is killed.
        preload: names of modules that are imported already, as `core_testing.programs` takes them.
        env: all its variables; None gives it those of this process.

    Raises:
        subprocess.TimeoutExpired: it has not ended by then.
    """
    program.write_text(text)
    command = [sys.executable, program, json.dumps(arguments)]
    return run(
        command,
        timeout=timeout_s,
        cwd=program.parent,
        env=_variables() if env is None else env,
        new_session=False,
        preload=preload,
    )


def _variables() -> dict[str, str]:
    """Those of this process, for one thread and for the modules that are importable here."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
