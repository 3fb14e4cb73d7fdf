"""The board on which ranks publish texts: a `Store` of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import Store

CALL, VERDICT, _DECIDED = "call", "verdict", "decided"


class Board:
    """Short texts under names, seen by all ranks that can reach the store. No other thread may use
    this connection to it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, name: str, text: str) -> None:
        """Write, in one piece."""
        self._store.set(name, text)

    def read(self, names: Sequence[str]) -> list[str]:
        """The texts, without waiting; empty where there is none. Two messages, as long as all are
        there.
        """
        if self._store.check(list(names)):
            return [text.decode() for text in self._store.multi_get(list(names))]
        return [self._text(name) for name in names]

    def is_first_to_decide(self, number: int) -> bool:
        """True for the first rank that asks about the verdict of this number."""
        return self._store.add(f"{_DECIDED}/{number}", 1) == 1

    def _text(self, name: str) -> str:
        if self._store.check([name]):
            return self._store.get(name).decode()
        return ""
