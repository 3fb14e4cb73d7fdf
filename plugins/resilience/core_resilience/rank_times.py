"""The times of all ranks beside each other, and which of them is behind for long."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

NUM_WINDOWS = 8
"""Windows in a row in which a rank must be behind."""
_NUM_KEPT = 32
_NORMAL = 1.4826
"""The standard deviation of a normal distribution, in units of its median absolute deviation."""
_LEAST_NOISE = 0.005
_MANY = 3.0
"""A rank is behind by so many deviations from window to window, at the median."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that is behind the others.

    Attributes:
        rank: its number.
        phase: number of the phase that makes most of it.
        share: of a step's own time at the median of all ranks, that the rank takes longer than the
            others.
        since: step after which it began, as far as is known.
        seconds: of the rank in that phase of a batch.
        others: likewise of the other ranks, at the median.
        before: of the rank before it began; None if it was so from the start.
    """

    rank: int
    phase: int
    share: float
    since: int
    seconds: float
    others: float
    before: float | None


class RankTimes:
    """The last windows of steps, with the seconds of each rank in each phase.

    A rank's excess is what it takes longer than the other ranks, at the median, as a share of a
    step's own time. It is behind where that is large in almost all of the last windows, and at
    their median many times as large as it changes from window to window. So a machine under load,
    whose times jump, names nobody.
    """

    def __init__(self, behind: float) -> None:
        """Begin without windows.

        Args:
            behind: excess from which a rank is behind.
        """
        self._behind = behind
        self._steps: deque[int] = deque(maxlen=_NUM_KEPT)
        self._seconds: deque[Tensor] = deque(maxlen=_NUM_KEPT)
        self._excess: deque[Tensor] = deque(maxlen=_NUM_KEPT)

    def add(self, step: int, seconds: Tensor) -> None:
        """Add a window.

        Args:
            step: optimizer steps before it.
            seconds: shape (ranks, phases), of a batch.
        """
        whole = torch.cat([seconds, seconds.sum(1, keepdim=True)], 1)
        typical = whole[:, -1].quantile(0.5).clamp(min=1e-9)
        self._steps.append(step)
        self._seconds.append(whole)
        self._excess.append((whole - _others(whole)) / typical)

    def shares(self) -> list[float]:
        """The excess of each rank in the last windows, at the median."""
        found: list[float] = self._last(NUM_WINDOWS).quantile(0.5, 0)[:, -1].tolist()
        return found

    def find(self, num_windows: int = NUM_WINDOWS) -> list[Behind]:
        """The ranks that are behind, judged by so many windows; none before there are as many."""
        if len(self._excess) < num_windows:
            return []
        last = self._last(num_windows)
        middle = last.quantile(0.5, 0)
        is_steady = (last > self._behind / 2).sum(0) >= num_windows - 1
        found = (middle >= self._behind) & (middle >= _MANY * self._noise(num_windows)) & is_steady
        # what a rank makes good in another phase delays nobody
        found &= middle[:, -1:] >= self._behind / 2
        return [
            self._describe(rank, middle[rank]) for rank in found.any(1).nonzero().flatten().tolist()
        ]

    def _last(self, num_windows: int) -> Tensor:
        return torch.stack([*self._excess][-num_windows:])

    def _noise(self, num_windows: int) -> Tensor:
        """How the excess changes from window to window; shape (ranks, phases + 1). A lasting change
        counts once.
        """
        last, kept = self._last(num_windows), torch.stack([*self._excess])
        spread = (last - last.quantile(0.5, 0)).abs().quantile(0.5, 0)
        jumps = kept.diff(dim=0).abs().quantile(0.5, 0) / 2**0.5
        return (_NORMAL * torch.maximum(spread, jumps)).clamp(min=_LEAST_NOISE)

    def _describe(self, rank: int, shares: Tensor) -> Behind:
        phase, first = int(shares[:-1].argmax()), self._find_beginning(rank, float(shares[-1]))
        seconds = torch.stack([*self._seconds])[:, :, phase]
        own, others = (
            seconds[-NUM_WINDOWS:, rank],
            torch.stack([_others(each) for each in seconds[-NUM_WINDOWS:]]),
        )
        return Behind(
            rank=rank,
            phase=phase,
            share=float(shares[-1]),
            since=self._steps[first],
            seconds=float(own.quantile(0.5)),
            others=float(others[:, rank].quantile(0.5)),
            before=float(seconds[:first, rank].quantile(0.5)) if first else None,
        )

    def _find_beginning(self, rank: int, share: float) -> int:
        """The window with which the rank fell behind; 0 if it was so from the start.

        The excess has one level before and another one after: the split that leaves the least
        distances from the two.
        """
        excess = torch.stack([*self._excess])[:, rank, -1]
        splits = range(2, len(excess) - NUM_WINDOWS // 2 + 1)
        first = min(
            splits, key=lambda place: _spread(excess[:place]) + _spread(excess[place:]), default=0
        )
        is_jump = (
            first and float(excess[first:].quantile(0.5) - excess[:first].quantile(0.5)) > share / 2
        )
        return first if is_jump else 0


class PictureOfRanks:
    """All windows of a run, a column each; neighbours become one when there are too many."""

    def __init__(self, max_columns: int = 96) -> None:
        self._max_columns = max_columns
        self.columns: list[tuple[int, int, Tensor]] = []
        """First and last step, and the seconds, of shape (ranks, phases)."""

    def add(self, first: int, last: int, seconds: Tensor) -> None:
        """Add a window."""
        self.columns.append((first, last, seconds))
        if len(self.columns) > self._max_columns:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=False)
            odd = self.columns[len(self.columns) // 2 * 2 :]
            self.columns = [*map(_joined, pairs), *odd]


def _joined(pair: Sequence[tuple[int, int, Tensor]]) -> tuple[int, int, Tensor]:
    (first, middle, before), (_, last, after) = pair
    share = (middle - first) / (last - first) if last > first else 0.5
    return first, last, before * share + after * (1 - share)


def _spread(values: Tensor) -> float:
    return float((values - values.quantile(0.5)).abs().sum())


def _others(values: Tensor) -> Tensor:
    """For each rank the median of the others; from three ranks on of all, which one slow rank
    doesn't move.
    """
    if len(values) == 2:
        return values.flip(0)
    return values.quantile(0.5, 0).expand_as(values)
