"""Boards on which ranks publish texts: a `Store` of torch, or a folder of the machine if the store
doesn't answer.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
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
        return [
            self._store.get(name).decode() if self._store.check([name]) else "" for name in names
        ]

    def is_first_to_decide(self, number: int) -> bool:
        """Count those that ask."""
        return self._store.add(f"{_DECIDED}/{number}", 1) == 1


class FolderBoard:
    """A board for the ranks of one machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> None:
        """Write to a file beside it, and rename that."""
        path = self._folder / name.replace("/", "-")
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(path)

    def read(self, names: Sequence[str]) -> list[str]:
        """Read the files that are there."""
        return [self._read(self._folder / name.replace("/", "-")) for name in names]

    def is_first_to_decide(self, number: int) -> bool:
        """Make a file that can be made once."""
        with contextlib.suppress(OSError):
            os.close(os.open(self._folder / f"{_DECIDED}-{number}", os.O_CREAT | os.O_EXCL, 0o600))
            return True
        return False

    @staticmethod
    def _read(path: Path) -> str:
        with contextlib.suppress(OSError):
            return path.read_text()
        return ""
