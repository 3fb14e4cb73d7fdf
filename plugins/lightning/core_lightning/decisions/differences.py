"""One warning for each thing that is meant differently here."""

from __future__ import annotations

from core import rank_zero_warn

PAGE = "docs/coming-from-lightning.md"
"""The page that lists all differences, each with its reason."""

NAMES_PAGE = "docs/lightning.md"
"""The page about what is there."""

_noted: set[str] = set()


def note(what: str, *, page: str = PAGE, stacklevel: int = 1) -> None:
    """Rank 0. Warn of a difference, a sentence, once in a process; `stacklevel` 1 is the line that
    calls this.
    """
    if what not in _noted:
        _noted.add(what)
        rank_zero_warn(f"{what} See {page}.", stacklevel=stacklevel + 1)
