"""Show each warning once per run, not once per rank, even if Python's registry was reset.

The filters of the warnings module decide what is shown, as ever; here is only what happens to a
warning that they let through. Python shows one of a place once, but forgets all places when a
filter changes, as many libraries let it; so what was shown is kept here. A filter that says
"always" shows it each time.

Ranks that a launcher of core has made hand theirs to the main process. It shows that of rank 0, and
what only others give, with their ranks. Ranks that others have made, as torchrun does, agree over
their store: the first to give a warning shows it. Nothing is done where other code has replaced
`warnings.showwarning`.

A warning at a line of core is shown at the user's line that has called it.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping
    from types import FrameType

_PASSED_BY = ("torch", "contextlib", "functools", "multiprocessing", "threading", "warnings")
"""Packages whose frames stand between core's and the user's line."""

HOLD_S = 1.0
"""Seconds for which another rank's warning is held back, since rank 0 may give the same."""


class GivenWarning(NamedTuple):
    """A warning as plain text, on its way between processes.

    Attributes:
        text: of the warning.
        categories: names of its class and of that one's bases, `"module:Class"`.
        filename: of the place that it is about.
        lineno: of that place.
        module: of that place; a file's name where no module is known.
    """

    text: str
    categories: tuple[str, ...]
    filename: str
    lineno: int
    module: str

    @classmethod
    def of(
        cls, message: Warning | str, category: type[Warning], filename: str, lineno: int
    ) -> GivenWarning:
        """The form of one that Python is about to show."""
        bases = tuple(f"{base.__module__}:{base.__qualname__}" for base in category.__mro__[:-1])
        files = {
            getattr(each, "__dict__", {}).get("__file__"): name
            for name, each in sys.modules.copy().items()
        }
        module = files.get(filename, filename)
        return cls(
            str(message), bases, filename, lineno, "__main__" if module == "__mp_main__" else module
        )

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> GivenWarning:
        """Read what `to_message` wrote."""
        return cls(**{**message, "categories": tuple(message["categories"])})

    def to_message(self) -> dict[str, Any]:
        """Plain values only."""
        return self._asdict()

    @property
    def category(self) -> type[Warning]:
        """Its class; the nearest base that this process knows."""
        for name in self.categories:
            module, _, qualname = name.partition(":")
            found = vars(sys.modules.get(module, sys)).get(qualname)
            if isinstance(found, type) and issubclass(found, Warning):
                return found
        return Warning

    @property
    def shows_each_time(self) -> bool:
        """True if the filters of this process show it however often it comes."""
        for action, message, category, module, lineno in warnings.filters:
            is_it = _matches(message, self.text) and issubclass(self.category, category)
            if is_it and _matches(module, self.module) and lineno in (0, self.lineno):
                return action == "always"
        return False


def _matches(pattern: re.Pattern[str] | str | None, text: str) -> bool:
    """True if a filter's pattern matches; those of Python's default filters are plain texts."""
    return pattern is None or (
        pattern == text if isinstance(pattern, str) else bool(pattern.match(text))
    )


_by_python = warnings.showwarning
_num_shown: Counter[GivenWarning] = Counter()
_senders: list[Callable[[GivenWarning], bool]] = []
_main_ranks: list[WarningsOfRanks] = []


def install() -> None:
    """Show each warning of this process once. A `showwarning` that other code has set stays."""
    if warnings.showwarning is _by_python:
        warnings.showwarning = _show


def remove() -> None:
    """Undo `install`."""
    if warnings.showwarning is _show:
        warnings.showwarning = _by_python


def send_warnings(send: Callable[[GivenWarning], bool]) -> None:
    """Send this process's warnings elsewhere, and show those for which `send` returns False."""
    _senders[:] = [send]
    install()


def share_warnings(rank: int, is_first: Callable[[str], bool]) -> None:
    """Show each warning on the first rank that gives it only. Does nothing in ranks that have a
    main process.

    Args:
        rank: of this process.
        is_first: returns True if no rank has asked for this text before.
    """
    if _senders or _main_ranks:
        return

    def show_if_first(given: GivenWarning) -> bool:
        try:
            shows = is_first(
                f"core/warning/{_num_shown[given]}/{given.filename}:{given.lineno}/{given.text}"
            )
        except Exception:  # the store is gone, and perhaps those who have shown it
            return False
        if shows:
            _show_by_python(given, f" [first on rank {rank}]" if rank > 0 else "")
        return True

    send_warnings(show_if_first)


class WarningsOfRanks:
    """The main process's side: decides which warnings of its ranks are shown, as they come. One a
    launch.

    Args:
        is_rank: whether the main process is a rank too, whose own warnings are shown as it gives
            them.
    """

    def __init__(self, *, is_rank: bool) -> None:
        self._shown_before = Counter() if is_rank else Counter(_num_shown)
        if is_rank:
            _main_ranks[:] = [self]
            # this process is one of the ranks, also where a launcher is used without a Fabric
            install()
        self._given: dict[int, Counter[GivenWarning]] = {}
        self._held: dict[GivenWarning, float] = {}

    def add(self, rank: int, given: GivenWarning) -> None:
        """Show it now if it is rank 0's, and hold it back if it is another's."""
        self._given.setdefault(rank, Counter())[given] += 1
        if self._ranks_unshown(given):
            self._held[given] = min(
                self._held.get(given, float("inf")), time.monotonic() + HOLD_S * (rank > 0)
            )
        self.show()

    @property
    def due_s(self) -> float:
        """Seconds until `show` has something to do; infinite if nothing is held."""
        return max(0.0, min(self._held.values(), default=float("inf")) - time.monotonic())

    def show(self, *, all_held: bool = False) -> None:
        """Show those that were held long enough, unless rank 0 has given the same meanwhile."""
        now_s = time.monotonic()
        for given in [each for each, due_s in self._held.items() if all_held or due_s <= now_s]:
            del self._held[given]
            ranks = self._ranks_unshown(given)
            if ranks and _is_to_be_shown(given):
                _show_by_python(
                    given, "" if ranks[0] == 0 else f" [rank {', '.join(map(str, ranks))}]"
                )

    def _ranks_unshown(self, given: GivenWarning) -> list[int]:
        """Those that have given it more often than it was shown."""
        num_shown = _num_shown[given] - self._shown_before[given]
        return sorted(rank for rank, counts in self._given.items() if counts[given] > num_shown)


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """The `warnings.showwarning`."""
    given = GivenWarning.of(message, category, filename, lineno)
    if is_of_core(given.module.partition(".")[0]) and (place := _users_line()):
        filename, lineno = place
        given = GivenWarning.of(message, category, filename, lineno)
    if file is None and (not _is_to_be_shown(given) or any(send(given) for send in _senders)):
        return
    _by_python(message, category, filename, lineno, file, line)


def is_of_core(package: str) -> bool:
    """True for a plugin too."""
    return package == "core" or package.startswith("core_")


def _users_line() -> tuple[str, int] | None:
    """File and number of the nearest line outside of core and what it is called by; None if there
    is none.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if not (
            package in _PASSED_BY or is_of_core(package) or frame.f_code.co_filename == "<string>"
        ):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _show_by_python(given: GivenWarning, remark: str) -> None:
    show = _by_python if warnings.showwarning is _show else warnings.showwarning
    show(Warning(given.text + remark), given.category, given.filename, given.lineno)


def _is_to_be_shown(given: GivenWarning) -> bool:
    """Count a warning. True if it is new, or to be shown each time."""
    _num_shown[given] += 1
    return _num_shown[given] == 1 or given.shows_each_time
