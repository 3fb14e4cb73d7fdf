"""Functions in forked copies of this process, and what they report."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from core import CoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def in_children(
    functions: Sequence[Callable[[Callable[[Any], None]], None]],
    *,
    timeout_s: float,
    is_loud: bool = False,
) -> list[dict[str, Any]]:
    """Call each `function(report)` in a copy of this process, side by side, and return what each
    has reported.

    Args:
        functions: each calls `report` once, with a dict that JSON can hold.
        timeout_s: after which the copies are killed.
        is_loud: let the copies print.

    Returns:
        What was reported, in their order; of one that has reported nothing, `{"failure": why}`.
    """
    children = [_fork(function, is_loud) for function in functions]
    deadline, reported = time.monotonic() + timeout_s, [b"" for _ in children]
    try:
        with selectors.DefaultSelector() as selector:
            for index, (_, reading) in enumerate(children):
                selector.register(reading, selectors.EVENT_READ, index)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    content = os.read(key.fd, 2**16)
                    reported[key.data] += content
                    if not content:
                        selector.unregister(key.fd)
                    if not content and reported[key.data].startswith(b'{"failure"'):
                        deadline = min(deadline, time.monotonic() + 2)  # others may wait for it
    finally:
        for child, reading in children:
            os.close(reading)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    silent = {
        "failure": f"The rehearsal didn't end within {timeout_s:.0f} s, or its process was killed."
    }
    return [json.loads(content) if content else silent for content in reported]


def _fork(function: Callable[[Callable[[Any], None]], None], is_loud: bool) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(function, writing, is_loud)
    os.close(writing)
    return child, reading


def _be_child(
    function: Callable[[Callable[[Any], None]], None], writing: int, is_loud: bool
) -> None:
    def report(found: Any) -> None:
        content = json.dumps(found).encode()
        while content:
            content = content[os.write(writing, content) :]

    try:
        if not is_loud:
            warnings.simplefilter("ignore")  # nobody sees them, and none ends the program
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        function(report)
        report({"failure": "The program has ended before its second optimizer step."})
    except SystemExit as end:
        report(
            {
                "failure": "The program has ended before its second optimizer step, with status "
                f"{end.code}."
            }
        )
    except BaseException as error:
        with contextlib.suppress(Exception):
            traceback.print_exc()
        report(
            {
                "failure": f"{type(error).__name__}: {error}",
                "is_refusal": isinstance(error, CoreError),
            }
        )
    finally:
        os._exit(1)
