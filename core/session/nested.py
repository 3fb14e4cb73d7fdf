"""The walk over nested dicts, lists and tuples of a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Exact types that stand for nothing but themselves. Most of what a state holds is of one, and is
passed.
"""


def items_of(value: Any) -> Iterable[Any]:
    """The items of a dict, list or tuple; none of anything else, and none of plain types only."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return ()
    if PLAIN.issuperset(map(type, value)):
        return ()
    items: Iterable[Any] = value
    return items


def are_alike(target: Any, saved: Any) -> bool:
    """True for two dicts, and for two lists or tuples of one length."""
    if isinstance(target, dict):
        return isinstance(saved, dict)
    return are_sequences(target, saved) and len(target) == len(saved)


def are_sequences(target: object, saved: object) -> bool:
    """True for two lists or tuples: those of a user may have grown or shrunk since."""
    return isinstance(target, list | tuple) and isinstance(saved, list | tuple)


def pairs(target: Any, saved: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Key or index, item and saved item, of what both of two containers that `are_alike` have."""
    if not isinstance(target, dict):
        target, saved = dict(enumerate(target)), dict(enumerate(saved))
    for key, item in target.items():
        if key in saved:
            yield key, item, saved[key]


def map_items(
    by: Callable[[object], object], items: list[object] | tuple[object, ...]
) -> Iterable[object]:
    """`by` of each item. A random state is a tuple of 625 integers: of plain types only, `by` isn't
    called at all.
    """
    if PLAIN.issuperset(map(type, items)):
        return items
    return map(by, items)


def replace(by: Callable[[Any], Any], value: Any) -> Any:
    """A copy of the containers, with `by(leaf)` in the place of each leaf that isn't of a plain
    type.
    """
    kind = type(value)
    if kind in PLAIN:
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
