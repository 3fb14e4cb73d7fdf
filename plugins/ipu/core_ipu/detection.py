"""Counts the IPUs of this machine, without an import of PopTorch into this process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec

from core import Absent, Broken, Found
from core_ipu.library import HOW_TO_INSTALL

_TIME_LIMIT_S = 100
# What PopTorch, the SDK below it and Python's own search depend on.
_VARIABLES = ("GC", "IPU", "LD_", "POP", "PVTI", "PYTHON")
# PopTorch only answers whether there are so many IPUs; they are used in powers of two.
_PROGRAM = """
import json

import poptorch

count, asked = 0, 1
while poptorch.ipuHardwareIsAvailable(asked):
    count, asked = asked, 2 * asked
print(json.dumps(count))
"""


def detect() -> Found | Absent | Broken:
    """Look for PopTorch, and only where it is installed ask it for IPUs, in a process of its
    own.
    """
    spec = find_spec("poptorch")
    if spec is None:
        return Absent("the package poptorch is not installed")
    return _ask(
        spec.origin, tuple(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES))
    )


@functools.cache
def _ask(origin: str | None, variables: tuple[tuple[str, str], ...]) -> Found | Absent | Broken:
    """The answer of PopTorch, asked once for one installation and environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Broken(f"poptorch did not say within {_TIME_LIMIT_S} s how many IPUs there are")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        return Broken(
            f"poptorch is installed, and can't be used: {last.rstrip('.')}. {HOW_TO_INSTALL}"
        )
    count = int(json.loads(done.stdout.splitlines()[-1]))
    return (
        Found(count)
        if count
        else Absent("poptorch counts no IPU (ipuHardwareIsAvailable() is False)")
    )
