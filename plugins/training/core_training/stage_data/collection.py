"""Several loaders in a nested structure: which of a user's lists and dicts are that, and how to
take them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_collection(data: Any) -> bool:
    """True for a collection of loaders: a dict always, a list or tuple if there is a loader in it.

    A list of tensors, of pairs of tensors, or of dicts of them is *one* loader, whose batches are
    its items.
    """
    return isinstance(data, Mapping) or (
        isinstance(data, list | tuple) and any(map(_contains_loader, data))
    )


def _contains_loader(data: Any) -> bool:
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, list | tuple):
        return any(map(_contains_loader, data))
    # a tensor or an array, of whatever library, has a shape
    has_values = isinstance(data, str | bytes | Tensor) or hasattr(data, "shape")
    return hasattr(data, "__iter__") and not has_values


def leaves_of(data: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """The loaders of a collection with their names, such as `labeled` or `pairs.0`; what isn't one
    is its only leaf.
    """
    if not is_collection(data):
        yield name, data
        return
    items: Iterable[tuple[object, Any]] = enumerate(data)
    if isinstance(data, Mapping):
        items = data.items()
    for key, item in items:
        yield from leaves_of(item, f"{name}.{key}".removeprefix("."))


def fill(structure: Any, leaves: Iterator[Any]) -> object:
    """The same structure with other things in the places of its loaders, in the order of
    `leaves_of`.
    """
    if not is_collection(structure):
        return next(leaves)
    if isinstance(structure, Mapping):
        return {key: fill(item, leaves) for key, item in structure.items()}
    items = [fill(item, leaves) for item in structure]
    if hasattr(structure, "_make"):
        return structure._make(items)
    if isinstance(structure, tuple):
        return tuple(items)
    return items
