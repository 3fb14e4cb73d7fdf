"""The code with which the interpreter ends, where nothing can be raised any more."""

from __future__ import annotations

import sys


def fail() -> None:
    """Set the exit code of the interpreter to 120, once it has done all that it has yet to do.

    That is Python's code for a standard stream that can't be flushed at the end. After an error in
    a function of `atexit` or in a finalizer it ends with 0.
    """
    flush = sys.stderr.flush

    def flush_or_fail() -> None:
        flush()
        sys._getframe(1)  # raises where no Python code calls: at the interpreter's end

    sys.stderr.flush = flush_or_fail  # type: ignore[method-assign]
