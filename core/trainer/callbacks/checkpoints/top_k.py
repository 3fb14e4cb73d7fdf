"""The best k checkpoints: which to keep, and which `save_top_k` prunes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class TopKCheckpoints:
    """The best checkpoints by score, `capacity` at most.

    Attributes:
        mode: `"min"` if less is better, `"max"` if more is.
        capacity: number of checkpoints to keep; -1 for all.
        scores: of each that is kept, by path, in the order in which they were written.
    """

    mode: Literal["min", "max"]
    capacity: int
    scores: dict[str, float] = field(default_factory=dict)

    def accepts(self, score: float) -> bool:
        """True if a checkpoint of this score would be kept. A score that isn't a number is the worst."""
        if self.capacity < 0 or len(self.scores) < self.capacity:
            return True
        return self.capacity > 0 and self._rank(score) < self._rank(self.scores[self.worst_path])

    def add(self, path: str, score: float) -> str | None:
        """Add a checkpoint. Returns the path of the one to prune for it, if any."""
        # A checkpoint that is overwritten makes room by itself.
        self.scores.pop(path, None)
        evicted = self.worst_path if 0 <= self.capacity <= len(self.scores) else None
        if evicted is not None:
            del self.scores[evicted]
        self.scores[path] = self.worst_score if math.isnan(score) else score
        return evicted

    def to_yaml(self) -> str:
        """A line for each that is kept: its path and its score."""
        # JSON's texts are YAML's too.
        return "".join(f"{json.dumps(path)}: {_yaml_number(score)}\n" for path, score in self.scores.items())

    @property
    def worst_score(self) -> float:
        """The worst possible score."""
        return math.inf if self.mode == "min" else -math.inf

    @property
    def best_path(self) -> str:
        """Path of the best; of several equally good ones, the first. Empty if there is none."""
        return min(self.scores, key=lambda path: self._rank(self.scores[path]), default="")

    @property
    def worst_path(self) -> str:
        """Path of the one to prune next; of several equally bad ones, the first. Empty if there is none."""
        return max(self.scores, key=lambda path: self._rank(self.scores[path]), default="")

    def _rank(self, score: float) -> float:
        if math.isnan(score):
            return math.inf
        return score if self.mode == "min" else -score


def _yaml_number(value: float) -> str:
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return repr(float(value))
