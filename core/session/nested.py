"""The walk over nested dicts, lists and tuples of a state."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Exact types that stand for nothing but themselves. Most of what a state holds is of one, and is
passed.
"""


@contextmanager
def refuse_endless() -> Iterator[None]:
    """A context for walks over a state.

    Raises:
        CheckpointError: it is nested too deeply for them.
    """
    try:
        yield
    except RecursionError:
        raise CheckpointError(
            "The state is nested too deeply to be saved, or holds itself. Save plain, finite data."
        ) from None


def map_items(
    by: Callable[[object], object], items: list[object] | tuple[object, ...]
) -> Iterable[object]:
    """`by` of each item. A random state is a tuple of 625 integers: of plain types only, `by` isn't
    called at all.
    """
    return items if PLAIN.issuperset(map(type, items)) else map(by, items)


def replace(by: Callable[[Any], Any], value: Any) -> Any:
    """A copy of the containers, with `by(leaf)` in the place of each leaf that isn't of a plain
    type.
    """
    if (kind := type(value)) in PLAIN:
        return value
    if isinstance(value, dict):
        # keeps the class, and the versions that a module's state carries in an attribute
        copied = value.copy()
        for key, item in value.items():
            copied[key] = replace(by, item)
        if hasattr(value, "_metadata"):
            copied._metadata = value._metadata  # type: ignore[attr-defined]
        return copied
    # Exactly these: a subclass, such as a named tuple or torch.Size, is a leaf for `by` to judge.
    if kind in (list, tuple):
        return kind(map_items(lambda item: replace(by, item), value))
    return by(value)
