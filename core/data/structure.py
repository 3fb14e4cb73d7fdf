"""Goes through nested data: what a collate function returns, or a user hands to a collective."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PLAIN: frozenset[type] = frozenset({str, bytes, int, float, bool, type(None)})


def map_leaves(
    function: Callable[[Any], object],
    data: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    of_all: bool = False,
    plain: bool = True,
) -> Any:
    """Apply `function` to everything that isn't a container, and rebuild only containers in which
    something changed.

    Containers are mappings, lists, tuples, named tuples, dataclasses and attrs classes, nested as
    deep as they are.

    Args:
        function: gets tensors, numbers, strings, None and every other leaf.
        data: nested structure.
        is_leaf: whether an object is handed to `function` although it may be a container. Not asked
            for plain lists, tuples and dicts.
        of_all: ask `is_leaf` for these too.
        plain: whether numbers, strings, bytes and None are handed to `function` too. Without them,
            a list of thousands of them costs no call.
    """
    skipped: frozenset[type] = frozenset()
    if not plain:
        skipped = _PLAIN

    def visit(data: Any) -> Any:
        # The most frequent first, by exact type; whatever else may be a container is looked at
        # last.
        kind = type(data)
        if kind in skipped:
            return data
        if isinstance(data, torch.Tensor) or kind in _PLAIN:
            return function(data)
        if of_all and is_leaf is not None and is_leaf(data):
            return function(data)
        if kind is tuple or kind is list:
            if skipped.issuperset(map(type, data)):
                return data
            items = list(map(visit, data))
            if _differ(data, items):
                return kind(items)
            return data
        if kind is dict:
            items = list(map(visit, data.values()))
            if _differ(data.values(), items):
                return dict(zip(data, items, strict=True))
            return data
        if is_leaf is not None and is_leaf(data):
            return function(data)
        return _map_other(visit, function, data)

    return visit(data)


def _map_other(visit: Callable[[Any], object], function: Callable[[Any], object], data: Any) -> Any:
    rebuild: Callable[[Any, list[object]], object]
    if isinstance(data, Mapping):
        before, rebuild = list(data.values()), _with_values
    elif isinstance(data, list | tuple):
        before, rebuild = list(data), _with_items
    else:
        names = field_names(data)
        if names is None:
            return function(data)
        before, rebuild = [getattr(data, name) for name in names], _with_fields
    after = list(map(visit, before))
    if _differ(before, after):
        return rebuild(data, after)
    return data


def field_names(data: object) -> list[str] | None:
    """The fields that an object of a dataclass or an attrs class has; None for anything else."""
    kind = type(data)
    declared = getattr(kind, "__attrs_attrs__", None)
    if is_dataclass(kind):
        declared = fields(kind)
    if declared is None:
        return None
    return [field.name for field in declared if hasattr(data, field.name)]


def _differ(before: Iterable[object], after: list[object]) -> bool:
    return any(old is not new for old, new in zip(before, after, strict=True))


def _with_values(data: Any, values: list[object]) -> object:
    changed = dict(zip(data, values, strict=True))
    if not isinstance(data, MutableMapping):
        return type(data)(changed)
    clone = copy.copy(data)  # keeps what else it holds: a default factory, an encoding
    clone.update(changed)
    return clone


def _with_items(data: Any, items: list[object]) -> object:
    if hasattr(data, "_make"):
        return data._make(items)
    if isinstance(data, tuple):
        return type(data)(items)
    clone = copy.copy(data)
    clone[:] = items
    return clone


def _with_fields(data: object, values: list[object]) -> object:
    clone = copy.copy(data)
    for name, value in zip(field_names(data) or (), values, strict=True):
        object.__setattr__(clone, name, value)  # also where the class is frozen
    return clone
