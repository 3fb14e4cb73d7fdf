"""A row for each epoch, under a header that comes again when the columns change."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

from core_training.callbacks.progress_bar.view import format_seconds, format_value, shorten_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FIXED = ("epoch", "step", "time", "it/s")
_MIN_WIDTHS = {"epoch": 5, "step": 7, "time": 7, "it/s": 6}
_VALUE_WIDTH = 9
_MIN_ROOM = 80  # or the terminal's width, if that is more
_ROOM_IN_FILES = 1000
_NARROW_WIDTHS = {"epoch": 5, "step": 6, "time": 7, "it/s": 5}
_NARROW_VALUE_WIDTH = 8


class EpochTable:
    """Aligned rows of numbers, written one by one.

    Where whole names would take more than the terminal has, which is at least 80 columns for up to
    six metrics, names stand on two lines as far as there is room, and on more where columns must be
    as narrow as their numbers. In a file there is room for whole names.
    """

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()
        self._widths: list[int] = []
        self._gap = "  "

    def add(
        self,
        write: Callable[..., None],
        *,
        epoch: int,
        step: int,
        seconds: float,
        batches_per_s: float,
        metrics: Mapping[str, Any],
    ) -> None:
        """Write a row, and the header if these columns are new.

        Args:
            write: takes a line, and `is_header`.
            epoch: its number.
            step: optimizer steps so far.
            seconds: that the epoch took, its validation included.
            batches_per_s: of its training.
            metrics: by name; a column each.
        """
        columns = (*_FIXED, *metrics)
        if columns != self._columns:
            self._columns = columns
            for line in self._lay_out(columns):
                write(line, is_header=True)
        cells = {
            "epoch": str(epoch),
            "step": str(step),
            "time": format_seconds(seconds),
            "it/s": shorten_number(batches_per_s),
            **{name: self._format(value) for name, value in metrics.items()},
        }
        write(self._line([cells[name] for name in columns]))

    def _lay_out(self, columns: Sequence[str]) -> list[str]:
        """Choose the widths. Returns the lines of the header."""
        self._gap = "  "
        self._widths = [_MIN_WIDTHS.get(name, max(_VALUE_WIDTH, len(name))) for name in columns]
        room = max(_MIN_ROOM, shutil.get_terminal_size((_ROOM_IN_FILES, 24)).columns - 1)
        if sum(self._widths) + len(self._gap) * (len(columns) - 1) <= room:
            return [self._line(columns)]
        self._gap = " "
        self._widths = [_NARROW_WIDTHS.get(name, _NARROW_VALUE_WIDTH) for name in columns]
        self._widen(columns, room)
        names = [_cut(name, width) for name, width in zip(columns, self._widths, strict=True)]
        height = max(map(len, names))
        return [
            self._line(row)
            for row in zip(*([""] * (height - len(name)) + name for name in names), strict=True)
        ]

    def _widen(self, columns: Sequence[str], room: int) -> None:
        """Give what is left of the room to long names, one by one: first to stand on two lines,
        then on one.
        """
        for lines in (2, 1):
            for index, name in enumerate(columns):
                left = room - sum(self._widths) - len(self._gap) * (len(columns) - 1)
                widths = range(self._widths[index], self._widths[index] + left + 1)
                self._widths[index] = next(
                    (each for each in widths if len(_cut(name, each)) <= lines), widths.start
                )

    def _format(self, value: Any) -> str:
        text = format_value(value)
        is_long = (
            len(self._gap) == 1 and len(text) > _NARROW_VALUE_WIDTH and not isinstance(value, str)
        )
        return f"{value:.2g}" if is_long else text

    def _line(self, cells: Sequence[str]) -> str:
        return self._gap.join(
            cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)
        ).rstrip()


def _cut(name: str, width: int) -> list[str]:
    """Parts of a name that are no wider, cut at `_` and `/` where that is possible."""
    parts = [""]
    for piece in re.findall(r"[_/]|[^_/]+", name):
        if len(parts[-1]) + len(piece) > width:
            parts.append("")
        parts[-1] += piece
    return [
        part[start : start + width]
        for part in parts
        if part
        for start in range(0, len(part), width)
    ]
