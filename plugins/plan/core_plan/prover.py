"""Proofs: what is wrong with a program under each strategy, found before it runs."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.contract import Remark
from core_plan.contender import parse_contenders
from core_plan.stage import MOST_PROCESSES, Stage, runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

_MOST_OTHERS = 4
"""Ranks that are compared with the first: one of each of its groups, and of no more groups."""


@dataclass(frozen=True)
class ProgramProof:
    """The answer for a program under one strategy.

    Attributes:
        strategy: as it was asked for, with options.
        findings: what is wrong, or can't be seen.
        axes: of the mesh, along which all that the step computes was followed.
        ranks: that have run, and exchange the same with each other where nothing else is found.
        is_real: with memory, as an engine does that takes no other tensors.
    """

    strategy: str
    findings: Sequence[Remark]
    axes: Sequence[str] = ()
    ranks: Sequence[int] = ()
    is_real: bool = False

    @property
    def answer(self) -> str:
        """`right`, `wrong`, `not proven`; or `ran`, where nothing was followed or is wrong."""
        if any(one.is_wrong for one in self.findings):
            return "wrong"
        if self.findings:
            return "not proven"
        return "right" if self.axes else "ran"


def prove(
    program: str | Callable[[], nn.Module],
    *,
    strategies: Sequence[str],
    devices: int,
    num_nodes: int = 1,
    arguments: Sequence[str] = (),
    is_loud: bool = False,
    **options: Any,
) -> list[ProgramProof]:
    """Main process. Find all that is wrong with a program under each strategy. It needs no device
    and no memory for the model.

    Args:
        program: as for `plan`.
        strategies: as on the command line, such as `"parallel:data=2,tensor=4"`.
        devices: ranks a node.
        num_nodes: nodes.
        arguments: of the script.
        is_loud: let the program print.
        options: arguments of Trainer that replace the program's, such as `precision`.
    """
    run = runner(program, list(arguments))
    return [
        _proved(Stage(run, each, devices, num_nodes, options, is_loud))
        for each in parse_contenders(strategies)
    ]


def _proved(stage: Stage) -> ProgramProof:
    world_size = stage.devices * stage.num_nodes
    ranks, is_real = [0], False
    every = stage.each(ranks, meet=False, objects={})
    if every[0].get("is_engine"):
        ranks, is_real = [*range(min(world_size, 2))], True
        small = dataclasses.replace(stage, devices=len(ranks), num_nodes=1)
        every = small.each(ranks, meet=len(ranks) > 1, is_real=True, objects={})
    elif group := next(iter(every[0].get("receives", ())), ""):
        ranks = every[0]["groups"][group]["ranks"]
        if world_size <= MOST_PROCESSES:
            ranks = [*range(world_size)]
        if len(ranks) > MOST_PROCESSES:
            return ProgramProof(str(stage.contender), [_OF_FEW])
        every = stage.each(ranks, meet=True, objects=every[0]["objects"])
    elif not every[0].get("findings"):
        others = _others(every[0])
        ranks += others
        every += stage.each(others, meet=False, objects=every[0]["objects"])
    found = [Remark(**each) for each in every[0].get("findings", ())]
    if not found:
        found += _differences(dict(zip(ranks, every, strict=True)))
    found += [Remark(**each) for one in every[1:] for each in one.get("findings", ())]
    if not any(one.is_wrong for one in found):  # else they may have waited for it
        found += [Remark(one["failure"], is_wrong=False) for one in every if "failure" in one]
    if any(one.get("receives") for one in every):
        found.append(_OF_FEW)
    axes = dict.fromkeys(axis for one in every for axis in one.get("axes", ()))
    return ProgramProof(str(stage.contender), list(dict.fromkeys(found)), [*axes], ranks, is_real)


_OF_FEW = Remark(
    "Its ranks send to each other, and are rehearsed by a process each: those of one group, of at "
    f"most {MOST_PROCESSES}. Prove it with a smaller one.",
    is_wrong=False,
)


def _others(first: Mapping[str, Any]) -> list[int]:
    """The last ranks of the groups in which the first has exchanged something."""
    used = {group for _, _, group, _ in first["exchanges"]}
    last = {one["ranks"][-1] for name, one in first["groups"].items() if name in used}
    return sorted(last - {0})[-_MOST_OTHERS:]


def _differences(found: Mapping[int, Mapping[str, Any]]) -> Iterator[Remark]:
    """The first difference in each group between what the first rank and another exchange in it."""
    (first, one), *others = found.items()
    for rank, other in others:
        own, others_own = _by_group(one), _by_group(other)
        for group in own.keys() & others_own.keys():
            axis, mine = own[group]
            _, theirs = others_own[group]
            for pair in itertools.zip_longest(mine, theirs, fillvalue=("nothing", "", "")):
                if pair[0][:2] != pair[1][:2]:
                    yield _difference((first, rank), pair, axis)
                    break


def _by_group(found: Mapping[str, Any]) -> dict[tuple[int, ...], tuple[str, list[Any]]]:
    """The axis, and what was exchanged, by the ranks of a group."""
    names = {name: tuple(one["ranks"]) for name, one in found.get("groups", {}).items()}
    groups: dict[tuple[int, ...], tuple[str, list[Any]]] = {
        names[name]: (one["axis"], []) for name, one in found.get("groups", {}).items()
    }
    for operation, shapes, group, place in found.get("exchanges", ()):
        if group in names:
            groups[names[group]][1].append((operation, shapes, place))
    return groups


def _difference(ranks: tuple[int, int], pair: Sequence[Any], axis: str) -> Remark:
    said = [
        f"rank {rank} calls {operation}{f' of {shapes}' if shapes else ''}"
        for rank, (operation, shapes, _) in zip(ranks, pair, strict=True)
    ]
    places = [place for _, _, place in pair if place]
    return Remark(
        f"Ranks of one group exchange different things: {' where '.join(said)}. All of them must "
        "make the same calls, in the same order: call it on every rank, whatever that then does "
        "with the result.",
        places[-1] if places else "",
        axis,
    )
