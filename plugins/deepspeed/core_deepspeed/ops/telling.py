"""Lines on how far compiling has come, while it takes minutes."""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from core_deepspeed.ops.preflight import folder_of, is_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OBJECT = re.compile(r"^build \S+\.o: ", re.MULTILINE)
_LONGEST_S = 120.0
_CLEAR = "\r\x1b[2K"


@contextmanager
def telling(names: Sequence[str], interval_s: float = 15.0) -> Iterator[None]:
    """Print to standard error how many files of the first part that isn't compiled yet are.

    A terminal has one line, which is drawn anew every second. Elsewhere a line comes after
    `interval_s`, the next one after twice that, and so on, up to two minutes.

    Args:
        names: parts, in the order in which they are compiled. Without any, nothing is printed.
        interval_s: before the first line.
    """
    ended, started = threading.Event(), time.monotonic()
    is_terminal = sys.stderr.isatty()

    def print_progress() -> None:
        wait_s = 1.0 if is_terminal else interval_s
        while not ended.wait(wait_s):
            name = next((one for one in names if not is_compiled(one)), names[-1])
            line = f"{name:20} {_progress_of(name)}, {time.monotonic() - started:.0f} s"
            click.echo(_CLEAR + line if is_terminal else line, err=True, nl=not is_terminal)
            wait_s = 1.0 if is_terminal else min(2 * wait_s, _LONGEST_S)
        if is_terminal:
            click.echo(_CLEAR, err=True, nl=False)

    thread = threading.Thread(target=print_progress, daemon=True)
    if names:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if names:
            thread.join()


def _progress_of(name: str) -> str:
    folder = folder_of(name)
    try:
        total = len(_OBJECT.findall((folder / "build.ninja").read_text(encoding="utf-8")))
    except OSError:  # ninja's file comes first, and soon
        return "begins"
    return f"{len(list(folder.glob('*.o')))} of {total} files are compiled"
