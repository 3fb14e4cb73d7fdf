"""A line on the terminal while something takes long."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.cli.layout import size_text
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


@contextmanager
def working(what: str, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal what is being done and for how long, until it is done; elsewhere nothing.

    Args:
        what: such as `Verifying last.ckpt`.
        console: to draw on; None for standard error.

    Yields:
        A function that takes the bytes that are done and those of all, to be shown too.
    """
    if console is None and not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    started, position = time.monotonic(), [0, 0]

    def line() -> Text:
        done, total = position
        share = f"  {done / total:.0%} of {size_text(total)}" if total else ""
        return Text(f"{printable(what)}{share}  {time.monotonic() - started:.0f} s", overflow="ellipsis", no_wrap=True)

    with Live(get_renderable=line, console=console or Console(stderr=True), transient=True):
        yield lambda done, total: position.__setitem__(slice(None), (done, total))
