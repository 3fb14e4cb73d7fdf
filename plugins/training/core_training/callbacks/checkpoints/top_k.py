"""The best checkpoints by score."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class TopKCheckpoints:
    """The best checkpoints by score, `capacity` at most.

    Attributes:
        mode: `"min"` if less is better, `"max"` if more is.
        capacity: number of checkpoints to keep; -1 for all.
        scores: of each that is kept, by path, in the order in which they were written. One that
            isn't a number is kept as the worst.
    """

    mode: Literal["min", "max"]
    capacity: int
    scores: dict[str, float] = field(default_factory=dict)

    def accepts(self, score: float) -> bool:
        """True if a checkpoint of this score would be kept."""
        if self.capacity < 0 or len(self.scores) < self.capacity:
            return True
        return self.capacity > 0 and self._rank(score) < self._rank_of(self.worst_path)

    def add(self, path: str, score: float) -> str:
        """Add a checkpoint. Returns the path of the one to prune for it, or nothing."""
        # A checkpoint that is overwritten makes room by itself.
        self.scores.pop(path, None)
        evicted = self.next_out
        self.scores.pop(evicted, None)
        if math.isnan(score):
            score = {"min": math.inf, "max": -math.inf}[self.mode]
        self.scores[path] = score
        return evicted

    @property
    def next_out(self) -> str:
        """Path of the one that the next has to replace; empty while there is room."""
        if 0 <= self.capacity <= len(self.scores):
            return self.worst_path
        return ""

    @property
    def best_path(self) -> str:
        """Path of the best; of several equally good ones, the first. Empty if there is none."""
        return min(self.scores, key=self._rank_of, default="")

    @property
    def worst_path(self) -> str:
        """Path of the worst; of several equally bad ones, the first. Empty if there is none."""
        return max(self.scores, key=self._rank_of, default="")

    def _rank_of(self, path: str) -> float:
        return self._rank(self.scores[path])

    def _rank(self, score: float) -> float:
        if self.mode == "max":
            return -score
        return score
