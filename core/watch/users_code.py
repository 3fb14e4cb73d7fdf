"""Which code is the user's own, and not core's, a plugin's, or an installed library's."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from core.display.tracebacks import STDLIB
from core.display.warnings_once import is_of_core

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_OWN = str(Path(__file__).parents[1]) + os.sep


def innermost(frames: Sequence[FrameType], waits_in: tuple[str, ...] = ()) -> int:
    """The index of the innermost frame of the user's code; the number of frames if there is none.

    Args:
        frames: innermost first.
        waits_in: names with which modules begin that are no user's.
    """
    for place, frame in enumerate(frames):
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(waits_in) and is_users(frame.f_code.co_filename, name):
            return place
    return len(frames)


def is_users(path: str, name: str = "") -> bool:
    """True for a file of the user's code, and the module that it is, if that is known."""
    package = name.partition(".")[0]
    if package == "torch" or is_of_core(package) or path.startswith(("<frozen ", _OWN)):
        return False
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in ("site-packages", "dist-packages")):
        return _uses_core(package, len(sys.modules))
    return not path.startswith(STDLIB)


@lru_cache(256)
def _uses_core(package: str, num_modules: int) -> bool:
    """True if a module of an installed package imports a name from core: it is the program, and no
    library.
    """
    for name, module in sys.modules.copy().items():
        if name == package or name.startswith(f"{package}."):
            for value in [*getattr(module, "__dict__", {}).values()]:
                home: object = ""
                if isinstance(value, ModuleType):
                    home = value.__name__
                elif isinstance(value, type | FunctionType):
                    home = value.__module__
                if is_of_core(str(home).partition(".")[0]):
                    return True
    return False
