"""Properties of the terminal, if the output goes to one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def find_console() -> Console | None:
    """A console on standard output, if that is a terminal or a notebook's own process; None where
    none can be redrawn.

    rich is imported only then: a batch job doesn't pay for it.
    """
    if "ipykernel" in sys.modules:
        # In a forked rank the kernel drops display messages; what it prints arrives.
        may_redraw = multiprocessing.parent_process() is None
    elif os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1":
        may_redraw = True  # rich takes these for a terminal
    else:
        may_redraw = sys.stdout is not None and sys.stdout.isatty()
    if not may_redraw:
        return None
    from rich.console import Console

    console = Console()
    if can_redraw(console):
        return console
    return None


def can_redraw(console: Console) -> bool:
    """True if written text can be replaced."""
    return console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)
