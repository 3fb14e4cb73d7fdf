"""Reads one batch ahead, to find the last one of a loader without a length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = object()


class LookAhead:
    """An iterator over the same batches. Only `is_last` fetches one in advance; the loop calls it within a window only.

    So at the end of an accumulation window, where checkpoints are made, no batch is held here.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._held: Any = _END

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._held is _END:
            return next(self._batches)
        batch, self._held = self._held, _END
        return batch

    def is_last(self) -> bool:
        """True if the batch that was given last is the last one."""
        if self._held is _END:
            self._held = next(self._batches, _END)
        return self._held is _END
