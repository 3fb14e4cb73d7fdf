"""How many parts each stage gets: by their parameters, by the time they take, or as the user
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Literal

from torch import nn

from core import ConfigurationError, ModuleError

Balance = Literal["parameters", "time"] | Sequence[int]
Measure = Callable[[Sequence[nn.Module]], Sequence[float]]


def parse(given: Any) -> Balance:
    """A rule, or the number of parts of each stage.

    Raises:
        ConfigurationError: it is neither.
    """
    if given in ("parameters", "time"):
        return given  # type: ignore[no-any-return]  # one of the two
    counts = list(given) if isinstance(given, list | tuple) else []
    if not counts or not all(type(one) is int and one > 0 for one in counts):
        raise ConfigurationError(
            f"balance={given!r:.80}: expected 'parameters', 'time', or a list with the number of "
            "parts of each stage, such as [3, 2]."
        )
    return tuple(counts)


def stages(
    title: str,
    parts: Sequence[nn.Module],
    num_stages: int,
    balance: Balance,
    measure: Measure,
) -> list[tuple[nn.Module, ...]]:
    """The parts of each stage.

    Args:
        title: of the module, for errors.
        parts: in the order in which they are applied.
        num_stages: number of stages.
        balance: `"parameters"` and `"time"` make the largest stage as small as can be; or the
            number of parts of each stage.
        measure: the seconds that modules take.

    Raises:
        ModuleError: there are fewer parts.
        ConfigurationError: the numbers don't add up.
    """
    if len(parts) < num_stages:
        raise ModuleError(
            f"{title} has {len(parts)} part(s), and {num_stages} stages were asked for: every "
            "stage needs one. Ask for fewer, or name smaller parts, by pipeline() or parts=."
        )
    if balance == "parameters":
        ends = _even([1 + _num_elements(part) for part in parts], num_stages)
    elif balance == "time":
        ends = _even(measure(parts), num_stages)
    else:
        if len(balance) != num_stages or sum(balance) != len(parts):
            raise ConfigurationError(
                f"balance={list(balance)} is for {len(balance)} stages and {sum(balance)} parts, "
                f"and there are {num_stages} stages (pipeline times stages_per_rank) and "
                f"{len(parts)} parts of {title} (functions among them don't count)."
            )
        ends = list(accumulate(balance))
    return [tuple(parts[begin:end]) for begin, end in pairwise([0, *ends])]


def _num_elements(part: nn.Module) -> int:
    return sum(one.numel() for one in (*part.parameters(), *part.buffers()))


def _even(costs: Sequence[float], num_stages: int) -> list[int]:
    """Ends so that the largest stage is as small as can be; of equals the one whose first stages
    are smaller.
    """
    sums = [0, *accumulate(costs)]

    @cache
    def best(number: int, end: int) -> tuple[float, tuple[int, ...]]:
        """Of so many stages up to an end, the cost of the largest, and all ends from the last."""
        if number == 1:
            return sums[end], (end,)
        shorter = (best(number - 1, one) for one in range(number - 1, end))
        largest, before = min(
            (max(largest, sums[end] - sums[before[0]]), before) for largest, before in shorter
        )
        return largest, (end, *before)

    return [*reversed(best(num_stages, len(costs))[1])]
