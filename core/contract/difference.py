"""Which ranks differ that must be alike, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Ranks that aren't alike.

    Attributes:
        step: optimizer steps before it was found.
        ranks: those that differ from the majority; without a majority, all that must be alike.
        has_majority: more than half of those that must be alike are, so that the others are in
            error.
        tensor: the first one that differs, in words.
    """

    step: int
    ranks: tuple[int, ...]
    has_majority: bool
    tensor: str

    def __str__(self) -> str:
        several = len(self.ranks) > 1
        named = f"rank{'s' * several} {', '.join(map(str, self.ranks))}"
        if self.has_majority:
            what = f"{named} differ{'s' * (not several)} from the other ranks"
        else:
            what = f"{named} differ from each other, and no majority says which of them is right"
        return f"After step {self.step} {what}; the first tensor that isn't alike is {self.tensor}."
