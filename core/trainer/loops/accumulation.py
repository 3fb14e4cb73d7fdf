"""Gradient accumulation: after which batches the optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.trainer.data.look_ahead import LookAhead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.trainer.data.loaders import Loaders


class AccumulationWindow:
    """Decides for each batch of an epoch whether it ends an accumulation window: after so many batches, or as the last.

    Attributes:
        batches: of the epoch. A loader without a length is read one batch ahead, to find the last one.
    """

    def __init__(
        self, num_accumulated: int, start: int, num_batches: int | float, batches: Iterator[Any], loaders: Loaders
    ) -> None:
        self._num_accumulated, self._start, self._num_batches, self._loaders = (
            num_accumulated,
            start,
            num_batches,
            loaders,
        )
        knows_length = loaders.knows_length and num_batches < float("inf")
        self._ahead = None if knows_length else LookAhead(batches)
        self.batches: Iterator[Any] = self._ahead or batches

    def ends_with(self, batch_idx: int) -> bool:
        """True if the batch that was fetched last ends a window."""
        if (batch_idx + 1 - self._start) % self._num_accumulated == 0 or batch_idx + 1 == self._num_batches:
            return True
        if self._ahead is None or not self._ahead.is_last():
            return False
        self._loaders.epoch_end = batch_idx + 1
        return True
