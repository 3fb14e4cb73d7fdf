"""The figures of one contender, from the records of its ranks in each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Spread:
    """A measured figure.

    Attributes:
        median: of all values.
        low: the first quartile.
        high: the third one.
        values: in the order in which they were measured.
    """

    median: float
    low: float
    high: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """That of some values; None if there are none."""
        if not values:
            return None
        low, middle, high = (
            quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        )
        return cls(middle, low, high, list(values))


@dataclass
class Result:
    """One row of the comparison.

    Attributes:
        strategy: as the user wrote it.
        status: `"measured"`, `"failed"`, or `"not run"`.
        reason: why it wasn't measured, or what was left out.
        log: the last lines of a run that has failed.
        rounds: number of runs that were timed.
        num_steps: of the shortest of them.
        samples_per_s: of all ranks, block by block over all rounds.
        samples_per_step: of all ranks.
        peak_memory_bytes: of the rank with the most.
        memory_of: `"process"` or `"device"`.
        sent_bytes: in a step, by the name of the collective, of the rank with the most; None where
            not counted.
        startup_s: from the launch to the end of the first step.
        checkpoint_s: to save a checkpoint.
        checkpoint_bytes: its size.
        losses: of each step, of the first round.
        has_dropout: some module drops at random.
        numbers: how its losses and weights compare with the reference's.
    """

    strategy: str
    status: str = "not run"
    reason: str = ""
    log: str = ""
    rounds: int = 0
    num_steps: int = 0
    samples_per_s: Spread | None = None
    samples_per_step: float | None = None
    peak_memory_bytes: int | None = None
    memory_of: str = ""
    sent_bytes: dict[str, int] | None = None
    startup_s: Spread | None = None
    checkpoint_s: float | None = None
    checkpoint_bytes: int | None = None
    losses: list[float] = field(default_factory=list)
    has_dropout: bool = False
    numbers: dict[str, Any] = field(default_factory=dict)

    def add_round(self, ranks: Sequence[dict[str, Any]]) -> None:
        """Add what the ranks of one run have recorded."""
        first = ranks[0]
        rates = _rates(ranks)
        if self.samples_per_s:
            rates = [*self.samples_per_s.values, *rates]
        startups = sorted(rank["startup_s"] for rank in ranks if "startup_s" in rank)[-1:]
        if self.startup_s:
            startups = [*self.startup_s.values, *startups]
        self.samples_per_s = Spread.of(rates)
        self.startup_s = Spread.of(startups)
        self.num_steps = min(first["num_steps"], self.num_steps or first["num_steps"])
        peak = max(rank.get("peak_memory_bytes", 0) for rank in ranks)
        self.peak_memory_bytes = max(peak, self.peak_memory_bytes or 0) or None
        self.memory_of = first.get("memory_of", "")
        self.has_dropout = any(rank["has_dropout"] for rank in ranks)
        if not self.rounds:
            self._add_first(ranks)
        self.rounds += 1
        self.status = "measured" if self.samples_per_s else "failed"
        if not self.samples_per_s:
            self.reason = (
                f"its own limits have ended the program after {self.num_steps} steps, "
                "within the warm-up"
            )

    def _add_first(self, ranks: Sequence[dict[str, Any]]) -> None:
        first = ranks[0]
        self.losses = mean_losses(ranks)
        self.samples_per_step = sum(rank["samples_per_step"] for rank in ranks) * _share(ranks)
        sent = [rank["sent_bytes"] for rank in ranks if "sent_bytes" in rank]
        self.sent_bytes = max(sent, key=lambda each: sum(each.values())) if sent else None
        self.checkpoint_s, self.checkpoint_bytes = (
            first.get("checkpoint_s"),
            first.get("checkpoint_bytes"),
        )
        self.reason = first.get("problem", "")


def mean_losses(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """The loss of each step: the mean over the samples of all ranks."""
    steps = zip(*(rank["losses"] for rank in ranks), strict=False)
    return [_mean([pair for of_rank in step for pair in of_rank]) for step in steps]


def _mean(pairs: Sequence[tuple[float, int]]) -> float:
    total = sum(size for _, size in pairs)
    return sum(loss * size for loss, size in pairs) / total


def _rates(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """Samples a second of all ranks in each block; a block ends when the last rank ends it."""
    blocks = [[(mark[0], mark[1], mark[2]) for mark in rank["marks"]] for rank in ranks]
    share = _share(ranks)
    rates = []
    for marks in pairwise(zip(*blocks, strict=False)):
        before, after = marks
        seconds = max(end[1] - start[1] for start, end in zip(before, after, strict=True))
        samples = sum(end[2] - start[2] for start, end in zip(before, after, strict=True)) * share
        rates.append(samples / seconds)
    return rates


def _share(ranks: Sequence[dict[str, Any]]) -> float:
    """By which a sum over ranks becomes one over shards of the data, of which several ranks may
    have the same.
    """
    return float(ranks[0]["num_shards"] / len(ranks))
