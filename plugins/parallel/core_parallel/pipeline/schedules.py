"""The schedules of `torch.distributed.pipelining`: what each of them needs of stages and
microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from core import ConfigurationError


@dataclass(frozen=True, slots=True)
class Schedule:
    """One of torch's schedules.

    Attributes:
        name: as torch has it.
        has_several_stages: a rank has a list of stages, and not one.
        in_v: stages go to the last rank and back, two a rank; else round.
        in_rounds: microbatches go in rounds of about as many as there are ranks.
        least_is_stages: there must be as many microbatches as stages.
        splits_backward: gradients of weights are computed later than those of inputs.
    """

    name: str
    has_several_stages: bool = False
    in_v: bool = False
    in_rounds: bool = False
    least_is_stages: bool = False
    splits_backward: bool = False

    def takes(self, number: int, num_ranks: int, num_stages: int) -> bool:
        """True if it can run so many microbatches."""
        if self.least_is_stages and number < num_stages:
            return False
        return not self.in_rounds or (number >= num_ranks and number % (number // num_ranks) == 0)

    def choose(
        self, given: int | None, size: int | None, num_ranks: int, num_stages: int
    ) -> int | None:
        """The number of microbatches of a batch, which divides it: torch's stages take pieces of
        one shape.

        Args:
            given: what the user asked for; None for `"auto"`, which is twice the stages.
            size: samples of the batch.
            num_ranks: of the pipeline.
            num_stages: of the pipeline.

        Returns:
            The largest up to what was asked for, else the smallest above it. None if there is none.
        """
        wanted = given or 2 * num_stages
        size = size or 0
        divisors = [number for number in range(1, size + 1) if size % number == 0]
        fitting = [one for one in divisors if self.takes(one, num_ranks, num_stages)]
        below = [one for one in fitting if one <= wanted]
        return max(below, default=min(fitting, default=None))


_ALL = (
    Schedule("GPipe"),
    Schedule("1F1B", least_is_stages=True),
    Schedule("LoopedBFS", has_several_stages=True),
    Schedule("Interleaved1F1B", has_several_stages=True, in_rounds=True),
    Schedule(
        "InterleavedZeroBubble", has_several_stages=True, in_rounds=True, splits_backward=True
    ),
    Schedule("ZBVZeroBubble", has_several_stages=True, in_v=True, splits_backward=True),
    Schedule(
        "DualPipeV", has_several_stages=True, in_v=True, least_is_stages=True, splits_backward=True
    ),
)


def find(name: Any) -> Schedule | None:
    """The schedule of a name, in small or capital letters; None stays None.

    Raises:
        ConfigurationError: torch has none of that name, or is older than 2.13: native code of 2.9
            ends the ranks.
    """
    if name is None:
        return None
    for schedule in _ALL:
        if isinstance(name, str) and schedule.name.lower() == name.lower():
            if torch.__version__ < "2.13":  # a TorchVersion, which compares numbers
                raise ConfigurationError(
                    f"schedule={schedule.name!r} needs torch 2.13 or later, and this is "
                    f"{torch.__version__}. Leave schedule out: the pipeline then does the same "
                    "steps with its stages one after the other."
                )
            return schedule
    names = ", ".join(repr(schedule.name) for schedule in _ALL)
    raise ConfigurationError(
        f"schedule={name!r}: expected one of torch's schedules ({names}); or None, with which the "
        "step sees its whole batch on all ranks."
    )


def stages_per_rank(given: int | None, schedule: Schedule | None) -> int:
    """The number of stages on each rank.

    Args:
        given: what the user asked for; None for `"auto"`.
        schedule: None if the step sees its whole batch.

    Raises:
        ConfigurationError: the schedule doesn't take so many.
    """
    number = 1
    if schedule is not None and schedule.has_several_stages:
        number = 2
        if given is not None and not schedule.in_v:
            return given
    if given not in (None, number):
        raise ConfigurationError(
            f"stages_per_rank={given} with schedule={schedule and schedule.name!r}, with which a "
            f"rank has exactly {number}. Use 'Interleaved1F1B', or leave stages_per_rank out."
        )
    return number


def refuse_compiled(schedule: Schedule | None) -> None:
    """Refuse schedules that compute the gradients of weights after those of inputs: a compiled part
    computes both.

    Raises:
        ConfigurationError: with others that train compiled parts.
    """
    if schedule is not None and schedule.splits_backward:
        raise ConfigurationError(
            f"compile=True with schedule={schedule.name!r}, which computes the gradients of "
            "weights later than those of inputs: a compiled part computes both at once. Use "
            "'GPipe', '1F1B', 'LoopedBFS' or 'Interleaved1F1B'; or leave compile out."
        )
