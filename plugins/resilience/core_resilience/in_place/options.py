"""What the user asks of `core go-on`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
        num_ranks: processes of a round.
        num_spares: further ones, which wait.
        least_ranks: a round begins with fewer than `num_ranks`, down to this number, if no spare is left. Equal to
            `num_ranks`: a new process takes the place of a lost one.
        multiple_of: a round has a multiple of this number of processes.
        most_losses: processes that may be lost.
    """

    num_ranks: int
    num_spares: int = 0
    least_ranks: int = 0
    multiple_of: int = 1
    most_losses: int = 3
