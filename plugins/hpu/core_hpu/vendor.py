"""The one place that imports the vendor's library."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from core import DeviceError

LIBRARY = "habana_frameworks.torch"

# `initialize_distributed_hpu()`, called where the library's `distributed/hccl/__init__.py` ends,
# which every import of the library comes to: it takes over what mpirun says, and lets all runs of a
# machine meet at one port.
_SET_BY_IMPORT = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "HLS_MODULE_ID",
    "ID",
)
_MEETING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}


@functools.cache
def load(name: str) -> Any:
    """A module of the library: `"core"`, `"hpu"` or `"distributed.hccl"`. The environment's
    variables stay as they are.

    Raises:
        DeviceError: it can't be imported.
    """
    if f"{LIBRARY}.distributed.hccl" in sys.modules:
        _forget_its_meeting()
    before = {name: os.environ.get(name) for name in _SET_BY_IMPORT}
    try:
        return importlib.import_module(f"{LIBRARY}.{name}")
    except Exception as error:
        # the library compares versions with `assert`, and loads shared libraries
        raise DeviceError(
            f"Gaudi devices need {LIBRARY}.{name}, and its import raised {error!r}. Install the "
            "vendor's PyTorch packages for this release of torch and of the driver: "
            "https://docs.habana.ai/en/latest/Installation_Guide/index.html"
        ) from error
    finally:
        put_back(before)


def put_back(variables: dict[str, str | None]) -> None:
    """Give variables of the environment the values that they had; None for those that weren't
    there.
    """
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _forget_its_meeting() -> None:
    """Drop the library's own address and port, where the script, or torch by itself, has imported
    it before.
    """
    if all(os.environ.get(name) == value for name, value in _MEETING.items()) and not _began_with(
        "MASTER_PORT"
    ):
        put_back(dict.fromkeys(_MEETING))


def _began_with(name: str) -> bool:
    """True if the process was started with this variable, or if that is unknown."""
    try:
        return f"\0{name}=".encode() in b"\0" + Path("/proc/self/environ").read_bytes()
    except OSError:
        return True
