"""A row for each epoch, under a header that comes again when the columns change."""

from __future__ import annotations

import shutil
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from core_training.callbacks.progress_bar.view import format_seconds, format_value, shorten_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WIDTHS = {"epoch": 5, "step": 6, "time": 7, "it/s": 5}
_VALUE_WIDTH = 8
_MIN_ROOM = 80  # or the terminal's width, if that is more
_ROOM_IN_FILES = 1000


class EpochTable:
    """Aligned rows of numbers, written one by one.

    Where whole names would take more than the terminal has, which is at least 80 columns for up to
    six metrics, columns are as narrow as their numbers, and names stand on several lines. In a file
    there is room for whole names.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._widths: list[int] = []

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
        columns = [*_WIDTHS, *metrics]
        if columns != self._columns:
            self._columns = columns
            room = max(_MIN_ROOM, shutil.get_terminal_size((_ROOM_IN_FILES, 24)).columns - 1)
            self._widths = [_WIDTHS.get(name, max(_VALUE_WIDTH, len(name))) for name in columns]
            if sum(self._widths) + len(columns) - 1 > room:
                self._widths = [_WIDTHS.get(name, _VALUE_WIDTH) for name in columns]
            names = [
                textwrap.wrap(name, width)
                for name, width in zip(columns, self._widths, strict=True)
            ]
            # from the last line up, on which all names end
            rows = list(zip_longest(*map(reversed, names), fillvalue=""))
            for row in reversed(rows):
                write(self._line(row), is_header=True)
        cells = [str(epoch), str(step), format_seconds(seconds), shorten_number(batches_per_s)]
        for value, width in zip(metrics.values(), self._widths[len(cells) :], strict=True):
            text = format_value(value)
            if len(text) > width and not isinstance(value, str):
                text = f"{value:.2g}"
            cells.append(text)
        write(self._line(cells))

    def _line(self, cells: Sequence[str]) -> str:
        pairs = zip(cells, self._widths, strict=True)
        return " ".join(cell.rjust(width) for cell, width in pairs).rstrip()
