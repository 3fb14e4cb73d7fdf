"""A rank for which all others wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is behind the others, so that all wait for it.

    Attributes:
        rank: its number.
        host: its machine.
        phase: that makes most of it: `data`, `forward`, `backward`, `optimizer` or `hooks`.
        line: of the program in which that phase was seen most often; empty if that isn't known.
        share: of a step's own time at the median of all ranks, by which that of the rank is longer
            than the others'.
        step: optimizer steps before it was named.
        since: likewise before it began; before the first ones that were compared if it was so from
            the start.
        own_s: seconds of the rank in that phase of a batch.
        others_s: likewise of the other ranks, at the median.
        before_s: likewise of the rank before it began; None if it was so from the start.
    """

    rank: int
    host: str
    phase: str
    line: str
    share: float
    step: int
    since: int
    own_s: float
    others_s: float
    before_s: float | None

    def __str__(self) -> str:
        since = "from the start" if self.before_s is None else f"since step {self.since}"
        before = "" if self.before_s is None else f", and took {_shown(self.before_s)} before"
        line = f" Most of that time it is at {self.line}." if self.line else ""
        return (
            f"Rank {self.rank} on {self.host} is {self.share:.0%} behind the other ranks {since}, "
            f"mostly in {self.phase}: it takes {_shown(self.own_s)} there, the others "
            f"{_shown(self.others_s)}{before}.{line}"
        )


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
