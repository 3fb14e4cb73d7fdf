"""Warnings that quote a line of the user's program, and not the line of core that gives them."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PASSED_BY = ("core", "torch", "contextlib", "functools", "multiprocessing", "threading")
"""Packages whose frames stand between a warning and the line that has called core."""


def warn_at(function: Callable[..., object] | None, message: str) -> None:
    """Give a UserWarning at the first line of a user's function, which it is about.

    Args:
        function: None, or one without code of its own, for the user's line that has called core.
        message: of the warning.
    """
    code = getattr(function and inspect.unwrap(function), "__code__", None)
    if code is not None:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)
    else:
        warn_caller(message)


def warn_caller(message: str) -> None:
    """Give a UserWarning at the user's line that has called core."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _PASSED_BY and not package.startswith("core_"):
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
