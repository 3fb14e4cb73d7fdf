"""Blocks of `with` and `try` in which the user's code makes a call: an exception through it would
run their ends.
"""

from __future__ import annotations

import dis
import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType

_LIBRARIES = ("torch.nn", "torch._dynamo", "transformers", "core")
"""Modules whose blocks only restore what they have set, and may end early."""


def around_call() -> str | None:
    """The place of the innermost block around the call that has led to the caller; None if there is
    none.

    It looks at the frames between those of the caller's module and the next ones of that.
    """
    frame = inspect.currentframe()
    assert frame is not None, "CPython has frames"
    assert frame.f_back is not None, "a function of another module calls it"
    home, frame = frame.f_back.f_globals, frame.f_back
    while frame is not None and frame.f_globals is home:
        frame = frame.f_back
    place = ""
    while frame is not None and frame.f_globals is not home:
        module = str(frame.f_globals.get("__name__"))
        if not _is_of_library(module):
            # what a decorator is around says more than its own line
            if module != "contextlib" or not place:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if any(begin <= frame.f_lasti < end for begin, end in _blocks_of(frame.f_code)):
                return place
        frame = frame.f_back
    return None


def _is_of_library(module: str) -> bool:
    return module.startswith("core_") or any(
        module == one or module.startswith(one + ".") for one in _LIBRARIES
    )


@lru_cache(maxsize=256)
def _blocks_of(code: CodeType) -> tuple[tuple[int, int], ...]:
    """From where to where instructions have a handler."""
    parsed: Any = dis.Bytecode(code)  # typeshed doesn't have this attribute
    return tuple((entry.start, entry.end) for entry in parsed.exception_entries)
