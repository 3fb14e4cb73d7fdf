"""A context in which an attribute has another value."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def set_within(owner: object, name: str, value: object) -> Iterator[None]:
    """A context in which an attribute has this value, and the one that it had before afterwards.

    For a `no_backward_sync` that `backward` asks:
    `return set_within(self, "_stays_local", enabled)`.
    """
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
