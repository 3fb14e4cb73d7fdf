"""The place of every stage, and of every tensor of the model."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from core_parallel.stages.cut import Cut

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def stage_owners(num_stages: int, size: int, *, in_v: bool = False) -> list[int]:
    """The position of the rank that has a stage, for each; see `Layout`."""
    turns = [divmod(stage, size) for stage in range(num_stages)]
    return [size - 1 - place if in_v and turn % 2 else place for turn, place in turns]


class Layout:
    """The stages of a model on the ranks of a pipeline.

    Args:
        user: the user's module.
        cut: its parts, as stages.
        size: number of ranks.
        position: of this rank.
        in_v: stages go to the last rank and back, so that the first rank has the first and the
            last; else round.
    """

    def __init__(
        self, user: nn.Module, cut: Cut, size: int, position: int, *, in_v: bool = False
    ) -> None:
        self.user, self.cut, self.size, self.position = user, cut, size, position
        self.module = cut.called[0]
        self.num_stages = len(cut.stages)
        self._owners = stage_owners(self.num_stages, size, in_v=in_v)
        self.own_stages = [stage for stage, owner in enumerate(self._owners) if owner == position]
        self._outside: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._around: list[tuple[str, nn.Module]] = []
        self._names = {module: name for name, module in user.named_modules()}

    def owner(self, stage: int) -> int:
        """The position of the rank that has a stage."""
        return self._owners[stage]

    def run(self, stage: int, call: Arguments, given: Any = None) -> Any:
        """The result of a stage.

        Args:
            stage: its number.
            call: the arguments of the model.
            given: the result of the stage before.
        """
        return self.cut.replay.run(*self.places_of(stage), *call, given)

    def places_of(self, stage: int) -> tuple[int, int]:
        """The numbers of a stage's first part and of the one after its last."""
        begin = sum(map(len, self.cut.stages[:stage]))
        return begin, begin + len(self.cut.stages[stage])

    def describe(self, stage: int) -> str:
        """The stage with the names of its first and its last part, for errors."""
        names = self.names_of(stage)
        return f"Stage {stage} (from {names[0]!r} to {names[-1]!r})"

    def names_of(self, stage: int) -> list[str]:
        """The names of the parts of a stage."""
        return [self._names[part] for part in self.cut.stages[stage]]

    def named_modules_of(self, *stages: int) -> list[tuple[str, nn.Module]]:
        """All modules in the parts of stages, by name."""
        parts = [part for stage in stages for part in self.cut.stages[stage]]
        return [(self._names[module], module) for part in parts for module in part.modules()]

    def modules_around(self) -> list[tuple[str, nn.Module]]:
        """The modules in no part, by name: the user's own, and others between it and the parts."""
        if not self._around:
            inside = {module for _, module in self.named_modules_of(*range(self.num_stages))}
            self._around = [(name, one) for one, name in self._names.items() if one not in inside]
        return self._around

    def modules_between(self, names: Iterable[str]) -> list[tuple[str, nn.Module]]:
        """The modules in no part and with no part in them that have one of these names, or such a
        module in them.
        """
        parts = {part for stage in self.cut.stages for part in stage}
        apart = [one for one in self.modules_around() if parts.isdisjoint(one[1].modules())]
        named = [f"{name}." for name in names]
        return [one for one in apart if any(name.startswith(f"{one[0]}.") for name in named)]

    def absent_modules(self) -> list[tuple[str, nn.Module]]:
        """The parts that other ranks have, by name."""
        parts = {part: self._names[part] for stage in self.cut.stages for part in stage}
        own = {part for stage in self.own_stages for part in self.cut.stages[stage]}
        return [(name, part) for part, name in parts.items() if part not in own]

    def owners(self) -> dict[int, int]:
        """The position of the rank that has a tensor, by its identity, where one rank alone has
        it.
        """
        found: dict[int, set[int]] = defaultdict(set)
        for stage, owner in enumerate(self._owners):
            for part in self.cut.stages[stage]:
                for tensor in (*part.parameters(), *part.buffers()):
                    found[id(tensor)].add(owner)
        return {key: owners.pop() for key, owners in found.items() if len(owners) == 1}

    def outside(self) -> list[Tensor]:
        """The parameters of no part, and those that parts on several ranks share: every rank has
        them.
        """
        everything: list[Tensor] = [*self.user.parameters()]
        known, outside = self._outside
        if len(known) != len(everything) or not all(map(operator.is_, known, everything)):
            owned = self.owners()
            outside = [one for one in everything if id(one) not in owned]
            self._outside = everything, outside
        return outside
