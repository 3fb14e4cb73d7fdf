"""Show each warning once per run, not once per rank, even if Python's registry was reset.

The filters of the warnings module decide what is shown, as ever; here is only what happens to a
warning that they let through. Python shows one of a place once, but forgets all places when a
filter changes, as many libraries let it; so what was shown is kept here. Where a filter says
"always" of its category, it is shown each time.

Ranks agree over their store: the first to give a warning shows it. A rank that a launcher of core
has made is silent until it comes to the call that it was made for: the main process has run the
same lines before. Nothing is done where other code has replaced `warnings.showwarning`.

A warning at a line of core is shown at the user's line that has called it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import FrameType

_PASSED_BY = ("torch", "contextlib", "functools", "multiprocessing", "threading", "warnings")
"""Packages whose frames stand between core's and the user's line."""

_by_python = warnings.showwarning
_writes = getattr(warnings, "_showwarnmsg_impl", None)
_num_given: Counter[tuple[str, str, int]] = Counter()
"""By text, file and line."""


class _Rank:
    """This process among the ranks.

    Attributes:
        number: global rank.
        store: of the ranks, a `torch.distributed.Store`; None before they meet.
        pid: of the process whose connection the store is.
        is_silent: it hasn't come to its call.
    """

    def __init__(self) -> None:
        self.number, self.pid = 0, os.getpid()
        self.store: Any = None
        self.is_silent = False

    def is_first(self, text: str) -> bool:
        """True if no rank has asked for this text before, or ranks can't be asked."""
        try:
            if self.pid != os.getpid():  # a forked copy, such as a loader's worker
                self.store, self.pid = self.store.clone(), os.getpid()
            return bool(self.store.add(f"core/warning/{text}", 1) == 1)
        except Exception:  # the store is gone, and perhaps those who have shown it
            return True


_rank = _Rank()


def install() -> None:
    """Show each warning of this process once. A `showwarning` that other code has set stays, and so
    does a recorder (`warnings.catch_warnings(record=True)`), which gets all.
    """
    is_recorded = getattr(warnings, "_showwarnmsg_impl", None) is not _writes
    if warnings.showwarning is _by_python and not is_recorded:
        warnings.showwarning = _show


def remove() -> None:
    """Undo `install`."""
    if warnings.showwarning is _show:
        warnings.showwarning = _by_python


def begin_silence() -> None:
    """Show no warning of this process until `end_silence`."""
    _rank.is_silent = True
    install()


def end_silence() -> None:
    """Show warnings again."""
    _rank.is_silent = False


def share_warnings(rank: int, store: object) -> None:
    """Show each warning on the first rank that gives it only, from now on.

    Args:
        rank: of this process.
        store: of all ranks, a `torch.distributed.Store`.
    """
    _rank.number, _rank.store, _rank.pid = rank, store, os.getpid()
    install()


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """The `warnings.showwarning`."""
    filename, lineno = _users_place(filename, lineno)
    given = (str(message), filename, lineno)
    if file is None:
        _num_given[given] += 1
        num_given = _num_given[given]
        if _rank.is_silent or (num_given > 1 and not _is_always_shown(category)):
            return
        if _rank.store is not None:
            if not _rank.is_first(f"{num_given}/{filename}:{lineno}/{message}"):
                return
            if _rank.number > 0:
                message = f"{message} [first on rank {_rank.number}]"
    _by_python(message, category, filename, lineno, file, line)


def _is_always_shown(category: type[Warning]) -> bool:
    return any(
        action == "always" and issubclass(category, each)
        for action, _, each, _, _ in warnings.filters
    )


def is_of_core(package: str) -> bool:
    """True for a plugin too."""
    return package == "core" or package.startswith("core_")


def _users_place(filename: str, lineno: int) -> tuple[str, int]:
    """The place of a warning. For a line of core, the nearest one outside of it that has called
    it.
    """
    frame: FrameType | None = sys._getframe()
    is_cores = False
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        path = frame.f_code.co_filename
        if is_of_core(package):
            is_cores |= path == filename
        elif is_cores and package not in _PASSED_BY and path != "<string>":
            return path, frame.f_lineno
        frame = frame.f_back
    return filename, lineno
