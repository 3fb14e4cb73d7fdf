"""How many parts each stage gets: by their parameters, by the time they take, or as the user
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Literal

from torch import Tensor, nn

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
    *,
    are_apart: bool = False,
) -> list[tuple[nn.Module, ...]]:
    """The parts of each stage.

    Args:
        title: of the module, for errors.
        parts: in the order in which they are applied.
        num_stages: number of stages.
        balance: `"parameters"` and `"time"` make the largest stage as small as can be; or the
            number of parts of each stage.
        measure: the seconds that modules take.
        are_apart: parts that share a weight may come apart.

    Raises:
        ModuleError: there are fewer parts that can be cut apart.
        ConfigurationError: the numbers don't add up.
    """
    places = [
        place
        for place in range(1, len(parts))
        if are_apart or _tensors(parts[:place]).isdisjoint(_tensors(parts[place:]))
    ]
    if len(places) < num_stages - 1:
        raise ModuleError(
            f"{title} has {len(places) + 1} part(s) that can be cut apart, and {num_stages} stages "
            "were asked for: every stage needs one, and parts that share a weight stay together. "
            "Ask for fewer, or name smaller parts, by pipeline() or parts=."
        )
    if balance == "parameters":
        costs = [1 + sum(one.numel() for one in _tensors([part])) for part in parts]
        ends = _even(costs, places, num_stages)
    elif balance == "time":
        ends = _even(measure(parts), places, num_stages)
    else:
        ends = _counted(title, balance, len(parts), places, num_stages)
    return [tuple(parts[begin:end]) for begin, end in pairwise([0, *ends])]


def _tensors(parts: Sequence[nn.Module]) -> set[Tensor]:
    """The tensors in parts, of which a cut doesn't separate two that share one."""
    return {tensor for part in parts for tensor in (*part.parameters(), *part.buffers())}


def _counted(
    title: str, counts: Sequence[int], num_parts: int, places: Sequence[int], num_stages: int
) -> list[int]:
    if len(counts) != num_stages or sum(counts) != num_parts:
        raise ConfigurationError(
            f"balance={list(counts)} is for {len(counts)} stages and {sum(counts)} parts, and "
            f"there are {num_stages} stages (pipeline times stages_per_rank) and {num_parts} "
            f"parts of {title} (functions among them don't count)."
        )
    ends = list(accumulate(counts))
    for end in ends[:-1]:
        if end not in places:
            raise ConfigurationError(
                f"balance={list(counts)} cuts after part {end} of {title}, between parts that "
                "share a weight, which stay in one stage. Cuts are possible after "
                f"{', '.join(map(str, places))}."
            )
    return ends


def _even(costs: Sequence[float], places: Sequence[int], num_stages: int) -> list[int]:
    """Ends so that the largest stage is as small as can be; of equals the one whose first stages
    are smaller.
    """
    ends, sums = [*places, len(costs)], [0, *accumulate(costs)]

    @cache
    def best(number: int, last: int) -> tuple[float, tuple[int, ...]]:
        """Of so many stages up to an end, the cost of the largest, and all ends from the last."""
        end = ends[last]
        if number == 1:
            return sums[end], (end,)
        shorter = (best(number - 1, one) for one in range(number - 2, last))
        largest, before = min(
            (max(largest, sums[end] - sums[before[0]]), before) for largest, before in shorter
        )
        return largest, (end, *before)

    return [*reversed(best(num_stages, len(places))[1])]
