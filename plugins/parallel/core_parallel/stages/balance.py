"""How many parts each stage gets: by their parameters, by the time they take, or as the user
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    is_list = isinstance(given, list | tuple) and len(given) > 0
    if not is_list or not all(
        isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in given
    ):
        raise ConfigurationError(
            f"balance={given!r:.80}: expected 'parameters', 'time', or a list with the number of "
            "parts of each stage, such as [3, 2]."
        )
    return tuple(given)


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
    places = list(range(1, len(parts))) if are_apart else _places(parts)
    if len(places) < num_stages - 1:
        raise ModuleError(
            f"{title} has {len(places) + 1} part(s) that can be cut apart, and {num_stages} stages "
            "were asked for: every stage needs one, and parts that share a weight stay together. "
            "Ask for fewer, or name smaller parts, by pipeline() or parts=."
        )
    if balance == "parameters":
        costs = [1 + sum(one.numel() for one in _tensors(part)) for part in parts]
        ends = _even(costs, places, num_stages)
    elif balance == "time":
        ends = _even(measure(parts), places, num_stages)
    else:
        ends = _counted(title, balance, len(parts), places, num_stages)
    return [tuple(parts[begin:end]) for begin, end in pairwise([0, *ends])]


def _places(parts: Sequence[nn.Module]) -> list[int]:
    """The numbers of parts before which a cut separates no two that share a weight."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, part in enumerate(parts):
        for tensor in _tensors(part):
            first.setdefault(id(tensor), index)
            last[id(tensor)] = index
    shared = {(begin, last[key]) for key, begin in first.items() if begin < last[key]}
    return [
        place
        for place in range(1, len(parts))
        if not any(begin < place <= end for begin, end in shared)
    ]


def _tensors(part: nn.Module) -> Iterable[Tensor]:
    return [*part.parameters(), *part.buffers()]


def _counted(
    title: str, counts: Sequence[int], num_parts: int, places: Sequence[int], num_stages: int
) -> list[int]:
    if len(counts) != num_stages:
        raise ConfigurationError(
            f"balance={list(counts)} is for {len(counts)} stages, and there are {num_stages}: "
            "pipeline times stages_per_rank. Give a number for each."
        )
    if sum(counts) != num_parts:
        raise ConfigurationError(
            f"balance={list(counts)} adds up to {sum(counts)} parts, and {title} has {num_parts} "
            "(functions among them don't count)."
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
    ends = [*places, len(costs)]
    sizes = [sum(costs[a:b]) for a, b in pairwise([0, *ends])]
    # best[k][i]: the largest stage of the first i atoms in k stages, and where the last of these
    # begins.
    best: list[list[tuple[float, int]]] = [[(0, 0)] + [(sum(sizes) + 1, 0)] * len(sizes)]
    for stage in range(1, num_stages + 1):
        row: list[tuple[float, int]] = [(sum(sizes) + 1, 0)] * (len(sizes) + 1)
        for end in range(stage, len(sizes) - (num_stages - stage) + 1):
            row[end] = min(
                (max(best[stage - 1][begin][0], sum(sizes[begin:end])), begin)
                for begin in range(stage - 1, end)
            )
        best.append(row)
    chosen = [len(sizes)]
    for stage in range(num_stages, 1, -1):
        chosen.insert(0, best[stage][chosen[0]][1])
    return [ends[one - 1] for one in chosen]
