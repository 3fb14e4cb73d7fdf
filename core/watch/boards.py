"""Boards on which ranks publish texts: a `Store` of torch, or none if the store doesn't answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import Store

CALL, VERDICT, _DECIDED = "call", "verdict", "decided"


class Board(Protocol):
    """Short texts under names, seen by all ranks that can reach it."""

    def write(self, name: str, text: str) -> None:
        """Write, in one piece."""

    def read(self, names: Sequence[str]) -> list[str]:
        """The texts, without waiting; empty where there is none."""

    def is_first_to_decide(self, number: int) -> bool:
        """True for the first rank that asks about the verdict of this number."""


class StoreBoard:
    """A board in a store, with a connection that no other thread uses."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, name: str, text: str) -> None:
        """Write."""
        self._store.set(name, text)

    def read(self, names: Sequence[str]) -> list[str]:
        """Read all in two messages, as long as all are there."""
        if self._store.check(list(names)):
            return [text.decode() for text in self._store.multi_get(list(names))]
        return [self._text(name) for name in names]

    def is_first_to_decide(self, number: int) -> bool:
        """Count those that ask."""
        return self._store.add(f"{_DECIDED}/{number}", 1) == 1

    def _text(self, name: str) -> str:
        if self._store.check([name]):
            return self._store.get(name).decode()
        return ""


class LonelyBoard:
    """A board that no other rank sees: each decides for itself, by what it sees of its machine."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        """Write."""
        self._texts[name] = text

    def read(self, names: Sequence[str]) -> list[str]:
        """Read what this rank has written."""
        return [self._texts.get(name, "") for name in names]

    def is_first_to_decide(self, number: int) -> bool:
        """Nobody else does."""
        return True
