"""Changes that a module makes in itself in a call: in buffers, and in attributes that are numbers
or tensors, or dicts and lists of numbers and words.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core_parallel.modules import absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""The attributes that torch gives to each module."""

_KINDS = (int, float, Tensor, type(None))
_MANY = (dict, list)
_PLAIN = (int, float, str, type(None))
State = dict[tuple[str, str], tuple[Any, Any]]
"""By module and attribute, the value and a copy of it."""


def state_of(named: Iterable[tuple[str, nn.Module]]) -> State:
    """The state of modules with these names, each without what is in it."""
    return {place: (value, _copied(value)) for place, value in values_of(named).items()}


def values_of(named: Iterable[tuple[str, nn.Module]]) -> dict[tuple[str, str], Any]:
    """The values of which `state_of` has copies too."""
    return {(name, key): value for name, part in named for key, value in _held(part)}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


def changed(before: State, after: State) -> set[tuple[str, str]]:
    """The places whose values differ, or are in one of the two only. Of dicts and lists those that
    are in both: one may have held something else.
    """
    nothing = (None, None)
    found: set[tuple[str, str]] = set()
    for place in before.keys() | after.keys():
        one, other = before.get(place, nothing)[1], after.get(place, nothing)[1]
        is_in_both = place in before and place in after
        if not is_in_both and (isinstance(one, _MANY) or isinstance(other, _MANY)):
            continue
        if not _are_alike(one, other):
            found.add(place)
    return found


@contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """A context after which buffers are as before."""
    own = [one for one in module.buffers() if not one.is_meta]
    before = [one.clone() for one in own]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, earlier in zip(own, before, strict=True):
                one.copy_(earlier)


def names_of(places: Iterable[tuple[str, str]]) -> list[str]:
    """The names of places, as they are shown."""
    return sorted(f"{name}.{key}" if name else key for name, key in places)


def _held(part: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from (
        (key, one) for key, one in part.named_buffers(recurse=False) if not absent.is_absent(one)
    )
    own = vars(part)
    for key in own.keys() - OF_EVERY_MODULE:
        if isinstance(own[key], _KINDS) or _is_plain(own[key]):
            yield key, own[key]


def _is_plain(value: Any) -> bool:
    if not isinstance(value, _MANY):
        return False
    values = value.values() if isinstance(value, dict) else value
    return all(isinstance(one, _PLAIN) for one in values)


def _are_alike(one: Any, other: Any) -> bool:
    """True if all values are, NaN too."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or (type(one) is type(other) and bool(one == other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta or other.is_meta or torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
