"""Errors of a program under a strategy, noted while a rehearsal looks for all of them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from core.contract.errors import CoreError


@dataclass(frozen=True)
class Remark:
    """One thing that is wrong with a program, or can't be seen.

    Attributes:
        text: what it is, and the cure.
        place: the user's line, as `file:line`; empty if there is none.
        axis: of the mesh; empty if it is of none.
        is_wrong: False if it may be right, which can't be seen.
    """

    text: str
    place: str = ""
    axis: str = ""
    is_wrong: bool = True


@dataclass
class Proof:
    """A context in which `refuse` notes errors in place of raising them.

    Attributes:
        findings: in their order, each once.
        axes: of the mesh, along which the strategy has followed what is computed.
    """

    findings: list[Remark] = field(default_factory=list)
    axes: dict[str, None] = field(default_factory=dict)
    _places: set[tuple[str, str, bool]] = field(default_factory=set)

    def __enter__(self) -> Self:
        _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _open.remove(self)

    def add(self, found: Remark, *, is_place_of_cause: bool = False) -> None:
        """Note something, unless it is known.

        Args:
            found: that.
            is_place_of_cause: whatever is found with the same axis and place has the same cause.
        """
        of_place = (found.axis, found.place, found.is_wrong)
        if found in self.findings or (is_place_of_cause and of_place in self._places):
            return
        if is_place_of_cause:
            self._places.add(of_place)
        self.findings.append(found)


_open: list[Proof] = []


def refuse(error: CoreError, *, axis: str = "", place: str = "") -> None:
    """Raise an error; within a `Proof`, note it: the caller goes on as if nothing were wrong.

    Args:
        error: of the user's program, with the cure.
        axis: of the mesh.
        place: the user's line that is its cause; the one that runs by default.

    Raises:
        CoreError: that one, outside of a `Proof`.
    """
    if not _open:
        raise error
    _note(str(error), axis, place, is_wrong=True)


def doubt(text: str, *, axis: str = "", place: str = "") -> None:
    """Within a `Proof`, note what can't be seen; otherwise do nothing.

    Args:
        text: what it is.
        axis: of the mesh.
        place: the user's line that is its cause; the one that runs by default.
    """
    if _open:
        _note(text, axis, place, is_wrong=False)


def follows(axis: str) -> bool:
    """Within a `Proof`, note that what is computed is followed along an axis of the mesh.

    Returns:
        True within one.
    """
    if _open:
        _open[-1].axes[axis] = None
    return bool(_open)


def _note(text: str, axis: str, place: str, *, is_wrong: bool) -> None:
    found = Remark(text, place or users_line(), axis, is_wrong)
    _open[-1].add(found, is_place_of_cause=bool(place))


def users_line(frames: Iterable[FrameType] | None = None) -> str:
    """The innermost line that isn't torch's, Python's or core's, as `file:line`; empty if there is
    none.

    Args:
        frames: innermost first; those of this thread by default.
    """
    if frames is None:
        frames = _running()
    for frame in frames:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_own = package in ("torch", "core") or package.startswith("core_")
        if not is_own and package not in sys.stdlib_module_names:
            path = frame.f_code.co_filename
            here = os.getcwd() + os.sep
            return f"{path.removeprefix(here)}:{frame.f_lineno}"
    return ""


def _running() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
