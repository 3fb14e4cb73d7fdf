"""Which code is the user's own, and not core's, a plugin's, or an installed library's."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

_OWN = str(Path(__file__).parents[1]) + os.sep
_plugins: set[str] = set()


def leave_out(parts: Iterable[object]) -> None:
    """Treat the packages of these objects' classes, such as a strategy's, as not the user's
    code.
    """
    _plugins.update(
        each.__module__.partition(".")[0] for part in parts for each in type(part).__mro__
    )
    _plugins.discard("__main__")


def innermost(frames: Sequence[FrameType], waits_in: tuple[str, ...] = ()) -> int:
    """The index of the innermost frame of the user's code, or else of a plugin; the number of
    frames if there is none.

    Args:
        frames: innermost first.
        waits_in: names with which modules begin that are no user's.
    """
    for plugins in (_plugins, set[str]()):  # a user's strategy may stand in the package of all else
        for place, frame in enumerate(frames):
            name = str(frame.f_globals.get("__name__"))
            if not name.startswith(waits_in) and _is_users(name, frame.f_code.co_filename, plugins):
                return place
    return len(frames)


def is_users_file(path: str) -> bool:
    """True for a file of the user's code. Looks through all modules, to know those of plugins."""
    files = {
        getattr(each, "__dict__", {}).get("__file__"): name
        for name, each in sys.modules.copy().items()
    }
    return _is_users(files.get(path, ""), path, _plugins)


def _is_users(name: str, path: str, plugins: set[str]) -> bool:
    package = name.partition(".")[0]
    if package in ("core", "torch") or package in plugins or path.startswith(("<frozen ", _OWN)):
        return False
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in ("site-packages", "dist-packages")):
        return _uses_core(package, len(sys.modules))
    return not path.startswith(_stdlib())


@cache
def _stdlib() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[name] + os.sep for name in ("stdlib", "platstdlib"))


@lru_cache(256)
def _uses_core(package: str, num_modules: int) -> bool:
    """True if a module of an installed package imports a name from core: it is the program, and no
    library.
    """
    own = [
        each
        for name, each in sys.modules.copy().items()
        if name == package or name.startswith(f"{package}.")
    ]
    return any(
        _is_of_core(value) for each in own for value in [*getattr(each, "__dict__", {}).values()]
    )


def _is_of_core(value: object) -> bool:
    if not isinstance(value, type | FunctionType | ModuleType):
        return False
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return str(name).partition(".")[0] == "core"
