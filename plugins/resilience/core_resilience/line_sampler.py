"""The line of the program in which a phase spends its time."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_INTERVAL_S = 0.01
_LIBRARIES = tuple(
    sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")
)


class LineSampler:
    """A thread that looks where another one is, a hundred times a second, while that is in one
    phase.
    """

    def __init__(self, phase: Callable[[], str | None], wanted: str) -> None:
        """Begin to look at the calling thread.

        Args:
            phase: says in which one that thread is.
            wanted: the phase that counts.
        """
        self.wanted = wanted
        self._phase, self._watched, self._lines = phase, threading.get_ident(), Counter[str]()
        self._ends = threading.Event()
        self._thread = threading.Thread(
            target=self._look, name="core-resilience lines", daemon=True
        )
        self._thread.start()

    def end(self) -> str:
        """End. The line that was seen most often, as in `train.py:12 in training_step`; empty if
        there was none.
        """
        self._ends.set()
        self._thread.join()
        return self._lines.most_common(1)[0][0] if self._lines else ""

    def _look(self) -> None:
        while not self._ends.wait(_INTERVAL_S):
            if self._phase() == self.wanted and (
                line := _line(sys._current_frames().get(self._watched))
            ):
                self._lines[line] += 1


def _line(frame: FrameType | None) -> str:
    """The innermost line of the user's own code that core's loop has called; else the innermost one
    of a library.
    """
    innermost = ""
    while frame is not None:
        name, path = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
        package = name.partition(".")[0]
        if name.startswith("core_training."):
            break
        if package != "core" and not package.startswith("core_") and not path.startswith("<"):
            line = f"{_shown(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
            if package != "torch" and not path.startswith(_LIBRARIES):
                return line
            innermost = innermost or line
        frame = frame.f_back
    return innermost


def _shown(path: str) -> str:
    """A library's path within it; any other as it is."""
    library = next((each for each in _LIBRARIES if path.startswith(each)), None)
    return path if library is None else str(Path(path).relative_to(library))
