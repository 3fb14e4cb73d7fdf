"""The sizes of the mesh's axes, derived from what the user said and the number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING, Any, Literal

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        ConfigurationError: the sizes don't multiply to it.
    """
    sizes = {axis: given[axis] or 1 for axis in AXES}
    derived = [axis for axis in AXES if given[axis] is None]
    if derived:
        chosen = next((axis for axis in derived if axis != "data"), "data")
        sizes[chosen] = max(1, world_size // prod(sizes.values()))
    if prod(sizes.values()) != world_size:
        shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ConfigurationError(
            f"{shown} are {prod(sizes.values())} processes, and there are {world_size}. Choose "
            "sizes that multiply to a divisor of that, and leave data out: it is what the others "
            "leave over."
        )
    across = sizes["data"] * sizes["shard"] * sizes["context"]
    expert = given["expert"] or across
    if across % expert:
        raise ConfigurationError(
            f"expert={expert}: experts are distributed over the ranks of data * shard * context, "
            f"which are {across} ({sizes['data']} * {sizes['shard']} * {sizes['context']}). Choose "
            "a size that divides that."
        )
    return Sizes(**sizes, expert=expert)
