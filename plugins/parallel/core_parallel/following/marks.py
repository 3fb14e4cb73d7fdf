"""How the values of a tensor lie over the ranks of a group: a mark, which it carries wherever it
goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from core.contract import users_line

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class PartAlong:
    """Each rank has its own part of the values, along one dim.

    Attributes:
        dim: which one.
        outer: number of what lies in that dim before the cut one, as samples do where a view has
            made one dim of samples and heads.
    """

    dim: int
    outer: int = 1


@dataclass(frozen=True)
class Mixed:
    """Each rank has values of its own, which aren't a part of what one device would have.

    Attributes:
        operation: that has computed them from parts.
        draws: it has drawn them, each rank numbers of its own, where one device draws once.
        is_term: their sum over the ranks is what one device would have.
        place: the user's line in which it did.
    """

    operation: str
    draws: bool = False
    is_term: bool = False
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        """The operation, and where it is."""
        return f"{self.operation} ({self.place})" if self.place else self.operation


MICROBATCH = "microbatch"
"""The axis along which microbatches are the parts of a batch. What has as many places as samples,
and no mark, such as noise, is believed to be of them.
"""

Mark = PartAlong | Mixed | None
"""None: all ranks have the same values, which are those of one device."""


def mark_of(value: Any, axis: str) -> Any:
    """The mark of a tensor, along an axis of the mesh; None of anything else."""
    if not isinstance(value, Tensor):
        return None
    marks: dict[str, Mark] = getattr(value, "_core_parallel_marks", {})
    return marks.get(axis)


def place_of(mark: object) -> str:
    """The user's line that has mixed values, or summed them; empty where none has."""
    return getattr(mark, "place", "")


def put(values: Iterable[Any], axis: str, mark: object) -> None:
    """Mark the tensors among some values, in the place of earlier marks along that axis."""
    if getattr(mark, "place", None) == "":
        mark = replace(cast("Mixed", mark), place=users_line())
    for one in values:
        if isinstance(one, Tensor) and mark_of(one, axis) != mark:
            one._core_parallel_marks = {**getattr(one, "_core_parallel_marks", {}), axis: mark}  # type: ignore[attr-defined]  # ours


def put_as(values: Iterable[Any], other: Tensor) -> None:
    """Mark some tensors as another one is, along each axis."""
    for axis, mark in getattr(other, "_core_parallel_marks", {}).items():
        put(values, axis, mark)
