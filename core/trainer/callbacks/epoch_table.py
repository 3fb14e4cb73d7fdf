"""A row for each epoch, under a header that comes again when the columns change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.trainer.callbacks.progress_view import format_seconds, format_value, shorten_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIXED = ("epoch", "step", "time", "it/s")
_MIN_WIDTHS = {"epoch": 5, "step": 7, "time": 7, "it/s": 6}
_VALUE_WIDTH = 9


class EpochTable:
    """Aligned rows of numbers, written one by one."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()

    def add(
        self,
        write: Callable[..., None],
        *,
        epoch: int,
        step: int,
        seconds: float,
        batches_per_s: float,
        metrics: Mapping[str, float],
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
            write(_line(columns, {name: name for name in columns}), is_header=True)
        cells = {
            "epoch": str(epoch),
            "step": str(step),
            "time": format_seconds(seconds),
            "it/s": shorten_number(batches_per_s),
            **{name: format_value(value) for name, value in metrics.items()},
        }
        write(_line(columns, cells))


def _line(columns: tuple[str, ...], cells: Mapping[str, str]) -> str:
    return "  ".join(cells[name].rjust(_MIN_WIDTHS.get(name, max(_VALUE_WIDTH, len(name)))) for name in columns)
