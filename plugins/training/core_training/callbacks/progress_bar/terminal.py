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
    if not _may_redraw():
        return None
    from rich.console import Console

    console = Console()
    return console if can_redraw(console) else None


def can_redraw(console: Console) -> bool:
    """True if written text can be replaced."""
    return console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)


def is_fork_of_notebook() -> bool:
    """True in a forked rank of a notebook: the kernel drops its display messages; what it prints
    arrives.
    """
    return "ipykernel" in sys.modules and multiprocessing.parent_process() is not None


def _may_redraw() -> bool:
    if "ipykernel" in sys.modules:
        return not is_fork_of_notebook()
    if os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1":
        return True  # rich takes these for a terminal
    return sys.stdout is not None and sys.stdout.isatty()
