"""How values lie after an exchange between the ranks of a group, by how they lay before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_parallel.following.marks import Mark, Mixed, PartAlong, mark_of, put
from core_parallel.following.mode import followed_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def cut(whole: Tensor, part: Tensor, dim: int, group: Any) -> None:
    """Mark what each rank keeps of what all have."""
    found = PartAlong(dim % part.ndim)
    _mark(whole, part, group, lambda mark: mark is None, found, "a part of a part")


def joined(part: Tensor, whole: Tensor, dim: int, group: Any) -> None:
    """Mark what all ranks have of all parts."""
    before = PartAlong(dim % part.ndim)
    _mark(part, whole, group, lambda mark: mark == before, None, "wholes, joined")


def swapped(given: Tensor, found: Tensor, cut_dim: int, joined_dim: int, group: Any) -> None:
    """Mark what was in parts along one dim, and is along another."""
    before, after = PartAlong(joined_dim % given.ndim), PartAlong(cut_dim % found.ndim)
    cause = "an exchange of what isn't cut there"
    _mark(given, found, group, lambda mark: mark == before, after, cause)


def added_up(term: Tensor, total: Tensor, group: Any) -> None:
    """Mark the sum of what all ranks have."""
    _mark(term, total, group, _is_term, None, "a sum over ranks of no terms")


def maximum(own: Tensor, largest: Tensor, group: Any) -> None:
    """Mark the largest of what all ranks have."""
    _mark(own, largest, group, _is_largest, None, "the largest of no parts")


def declare_terms(terms: Tensor, group: Any) -> None:
    """Mark values of which each rank has its own, and zeros in the places of others."""
    for axis in followed_over(group):
        put([terms], axis, Mixed("values that are its own", is_term=True))


def lost(found: Tensor, values: Tensor, target: Tensor, reduction: str, group: Any) -> None:
    """Mark a loss of values and labels by position, by one of torch's functions."""
    for axis in followed_over(group):
        mark, expected = mark_of(values, axis), mark_of(target, axis)
        if isinstance(mark, PartAlong) and target.ndim != values.ndim:
            mark = PartAlong(mark.dim - (mark.dim > 1), mark.outer)  # there are no classes
        if isinstance(mark, PartAlong) and mark == expected:
            is_sum = reduction == "sum"
            put([found], axis, mark if reduction == "none" else Mixed(reduction, is_term=is_sum))
        else:
            mixed = mark if isinstance(mark, Mixed) else expected
            put([found], axis, _mixed(mixed, "a loss of labels of other positions"))


def _mark(
    given: Tensor,
    found: Tensor,
    group: Any,
    is_expected: Callable[[Any], bool],
    result: Mark,
    cause: str,
) -> None:
    for axis in followed_over(group):
        mark = mark_of(given, axis)
        put([found], axis, result if is_expected(mark) else _mixed(mark, cause))


def _is_term(mark: Any) -> bool:
    return isinstance(mark, Mixed) and mark.is_term


def _is_largest(mark: Any) -> bool:
    return isinstance(mark, Mixed) and mark.operation == "amax"


def _mixed(mark: Mark, cause: str) -> Mixed:
    return Mixed(mark.operation if isinstance(mark, Mixed) else cause)
