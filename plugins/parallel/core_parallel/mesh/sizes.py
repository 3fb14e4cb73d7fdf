"""The sizes of the mesh's axes, derived from what the user said and the number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING, Any, Literal

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Size = int | Literal["auto"]

AXES = ("pipeline", "data", "shard", "context", "tensor")
"""The axes of the mesh, from the outermost to the innermost, whose ranks follow each other."""
EXPERT_AXES = ("expert_pipeline", "expert_copies", "expert_shard", "expert", "expert_tensor")
"""The axes of the mesh over which experts are distributed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the axes, which multiply to the number of processes, and of the one that lies across
    three of them.

    Attributes:
        expert: ranks over which experts are distributed; divides data * shard * context.
    """

    pipeline: int
    data: int
    shard: int
    context: int
    tensor: int
    expert: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the order of `AXES`."""
        return self.pipeline, self.data, self.shard, self.context, self.tensor

    @property
    def of_experts(self) -> tuple[int, int, int]:
        """Copies of all experts, ranks over which one rank's experts are sharded, and ranks that
        have different ones.

        They are sharded over as many ranks as `shard` says, as far as there are copies.
        """
        groups = self.data * self.shard * self.context // self.expert
        sharded = gcd(self.shard, groups)
        return groups // sharded, sharded, self.expert


def parse(name: str, size: Any) -> int | None:
    """A size, or None if it is to be derived.

    Raises:
        ConfigurationError: it is neither a positive number nor `"auto"`.
    """
    if size == "auto":
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(f"{name}={size!r}: expected a positive number, or 'auto'.")
    return size


def derive(given: Mapping[str, int | None], world_size: int) -> Sizes:
    """The sizes for this number of processes.

    Args:
        given: the size of each axis, and of `expert`. None is what the others leave over; of
            several the first in the order of `AXES` gets it, `data` last.
        world_size: number of processes.

    Raises:
        ConfigurationError: the sizes don't multiply to it; with the nearest that do.
    """
    sizes = {axis: given[axis] or 1 for axis in AXES}
    derived = [axis for axis in AXES if given[axis] is None]
    if derived:
        chosen = next((axis for axis in derived if axis != "data"), "data")
        sizes[chosen] = max(1, world_size // prod(sizes.values()))
    if (product := prod(sizes.values())) != world_size:
        shown = _shown(given, sizes)
        nearest = _nearest(sizes, shown, world_size)
        raise ConfigurationError(
            f"{_listed(sizes, shown)} make {product} processes, and there are {world_size}. "
            f"The nearest sizes that multiply to that are {_listed(nearest, shown)}."
        )
    return Sizes(**sizes, expert=_expert(given["expert"], sizes))


def _expert(given: int | None, sizes: Mapping[str, int]) -> int:
    across = sizes["data"] * sizes["shard"] * sizes["context"]
    if given is None:
        return across
    if across % given:
        fit = ", ".join(str(size) for size in range(1, across + 1) if across % size == 0)
        raise ConfigurationError(
            f"expert={given}: experts are distributed over the ranks of data * shard * context, "
            f"which are {across} ({sizes['data']} * {sizes['shard']} * {sizes['context']}). Sizes "
            f"that divide that: {fit}."
        )
    return given


def _shown(given: Mapping[str, int | None], sizes: Mapping[str, int]) -> list[str]:
    """The axes that a message is about: those that the user has set, and data."""
    return [axis for axis in AXES if axis == "data" or given[axis] is None or sizes[axis] > 1]


def _listed(sizes: Mapping[str, int], shown: Sequence[str]) -> str:
    *first, last = [f"{axis}={sizes[axis]}" for axis in shown]
    return f"{', '.join(first)} and {last}" if first else last


def _nearest(sizes: Mapping[str, int], shown: Sequence[str], world_size: int) -> dict[str, int]:
    def distance(shape: Mapping[str, int]) -> tuple[int, list[int]]:
        return sum(abs(shape[axis] - sizes[axis]) for axis in shown), [
            -shape[axis] for axis in shown
        ]

    fits = (
        dict.fromkeys(AXES, 1) | dict(zip(shown, shape, strict=True))
        for shape in _factors(world_size, len(shown))
    )
    return min(fits, key=distance)


def _factors(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many, in order."""
    if count == 1:
        yield (product,)
        return
    for size in range(1, product + 1):
        if product % size == 0:
            yield from ((size, *rest) for rest in _factors(product // size, count - 1))
