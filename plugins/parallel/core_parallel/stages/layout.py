"""The place of every stage, and of every tensor of the model."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

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
        self.num_stages = len(cut.stages)
        self._owners = stage_owners(self.num_stages, size, in_v=in_v)
        self.own_stages = [stage for stage, owner in enumerate(self._owners) if owner == position]
        self._outside: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._names = {id(module): name for name, module in user.named_modules()}

    @property
    def module(self) -> nn.Module:
        """The module that was cut."""
        return self.cut.module

    def owner(self, stage: int) -> int:
        """The position of the rank that has a stage."""
        return self._owners[stage]

    @property
    def needs_call(self) -> bool:
        """True if every stage needs the arguments of the model, and not the first alone."""
        return self.cut.replay is not None

    def run(self, stage: int, call: Arguments | None, given: Any = None) -> Any:
        """The result of a stage.

        Args:
            stage: its number.
            call: the arguments of the model, for the first stage; for all if `needs_call`.
            given: the result of the stage before.
        """
        args, kwargs = call or ((), {})
        if self.cut.replay is not None:
            return self.cut.replay.run(*self.places_of(stage), args, kwargs, given)
        first, *others = self.cut.stages[stage]
        result = first(given) if stage else first(*args, **kwargs)
        for part in others:
            result = part(result)
        return result

    def places_of(self, stage: int) -> tuple[int, int]:
        """The numbers of a stage's first part and of the one after its last."""
        begin = sum(map(len, self.cut.stages[:stage]))
        return begin, begin + len(self.cut.stages[stage])

    def describe(self, stage: int) -> str:
        """The stage with the names of its parts, for errors."""
        names = self.names_of(stage)
        shown = ", ".join(map(repr, names if len(names) <= 4 else [*names[:2], "...", names[-1]]))
        return f"Stage {stage} ({shown})"

    def names_of(self, stage: int) -> list[str]:
        """The names of the parts of a stage."""
        return [self._names[id(part)] for part in self.cut.stages[stage]]

    def named_modules_of(self, stage: int) -> list[tuple[str, nn.Module]]:
        """All modules in the parts of a stage, by name."""
        return [
            (self._names[id(module)], module)
            for part in self.cut.stages[stage]
            for module in part.modules()
        ]

    def modules_around(self) -> list[tuple[str, nn.Module]]:
        """The modules in no part, by name: the user's own, and others between it and the parts."""
        inside = {
            id(module) for stage in self.cut.stages for part in stage for module in part.modules()
        }
        return [
            (name, module) for name, module in self.user.named_modules() if id(module) not in inside
        ]

    def modules_between(self, names: Iterable[str]) -> list[tuple[str, nn.Module]]:
        """The modules in no part and with no part in them that have one of these names, or such a
        module in them.
        """
        parts = {part for stage in self.cut.stages for part in stage}
        names = [*names]
        return [
            (name, module)
            for name, module in self.modules_around()
            if parts.isdisjoint(module.modules())
            and any(f"{one}.".startswith(f"{name}.") for one in names)
        ]

    def absent_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The parts that other ranks have, by name."""
        own = {id(part) for stage in self.own_stages for part in self.cut.stages[stage]}
        for stage in self.cut.stages:
            for part in stage:
                if id(part) not in own:
                    yield self._names[id(part)], part

    def owners(self) -> dict[int, int]:
        """The position of the rank that has a tensor, by its identity, where one rank alone has
        it.
        """
        found: dict[int, set[int]] = defaultdict(set)
        for stage, parts in enumerate(self.cut.stages):
            for part in parts:
                for tensor in (*part.parameters(), *part.buffers()):
                    found[id(tensor)].add(self.owner(stage))
        return {key: owners.pop() for key, owners in found.items() if len(owners) == 1}

    def outside(self) -> list[Tensor]:
        """The parameters of no part, and those that parts on several ranks share: every rank has
        them.
        """
        everything: list[Tensor] = [*self.user.parameters()]
        known, outside = self._outside
        if len(everything) != len(known) or any(
            one is not other for one, other in zip(everything, known, strict=True)
        ):
            owned = self.owners()
            outside = [one for one in everything if id(one) not in owned]
            self._outside = everything, outside
        return outside
