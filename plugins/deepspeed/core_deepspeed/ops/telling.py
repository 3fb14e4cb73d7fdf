"""Lines on how far compiling has come, while it takes minutes."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from core_deepspeed.ops.preflight import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_OBJECT = re.compile(r"^build \S+\.o: ", re.MULTILINE)


@contextmanager
def telling(name: str, interval_s: float = 15.0) -> Iterator[None]:
    """Print on standard error, every so many seconds, how many files of a part are compiled."""
    ended, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(interval_s):
            click.echo(f"{name:20} {_progress_of(name)}, {time.monotonic() - started:.0f} s", err=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _progress_of(name: str) -> str:
    folder = folder_of(name)
    try:
        total = len(_OBJECT.findall((folder / "build.ninja").read_text(encoding="utf-8")))
    except OSError:  # ninja's file comes first, and soon
        return "begins"
    return f"{len(list(folder.glob('*.o')))} of {total} files are compiled"
