"""The places of processes in a round: nodes, ranks, and the variables that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_resilience.in_place.member import Member, ProcessNode
    from core_resilience.in_place.options import Options


class RankPlace(NamedTuple):
    """Where a process stands in a round.

    Attributes:
        member: the process.
        node_rank: number of its node.
        local_rank: its number on the node.
    """

    member: Member
    node_rank: int
    local_rank: int


def places(
    nodes: Sequence[ProcessNode], before: Sequence[ProcessNode], options: Options, least_nodes: int
) -> list[RankPlace] | None:
    """The places of the next round, by rank; None if processes or nodes are missing.

    Nodes and processes of the round before keep their numbers, unless there are fewer now.

    Args:
        nodes: that are there.
        before: the nodes of the round before, in their order.
        options: how many there should be, and may be.
        least_nodes: of this round.
    """
    full = [node for node in nodes if _size(node, options) >= options.least_devices]
    if len(full) < options.num_nodes and any(
        _waits_for(node) for node in nodes if node not in full
    ):
        return None
    chosen = _in_order(full, before)[: options.num_nodes]
    if len(chosen) < least_nodes:
        return None
    if any(_size(node, options) < options.num_devices and _waits_for(node) for node in chosen):
        return None
    size = min(_size(node, options) for node in chosen)
    return [
        RankPlace(member, node_rank, local_rank)
        for node_rank, node in enumerate(chosen)
        for local_rank, member in enumerate(_in_order_of_ranks(node, size))
    ]


def variables(place: RankPlace, num_nodes: int, num_local: int) -> dict[str, str]:
    """The variables that torchrun sets for one rank."""
    rank = place.node_rank * num_local + place.local_rank
    return {
        **dict.fromkeys(("RANK", "ROLE_RANK"), str(rank)),
        "LOCAL_RANK": str(place.local_rank),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_nodes * num_local)),
        "LOCAL_WORLD_SIZE": str(num_local),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "ROLE_NAME": "default",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _size(node: ProcessNode, options: Options) -> int:
    """The processes that a node can have in a round, of those that are ready."""
    num_ready = min(options.num_devices, sum(each.is_ready for each in node.members))
    return num_ready // options.multiple_of * options.multiple_of


def _waits_for(node: ProcessNode) -> bool:
    """True if a process of the node is on its way."""
    return any(not each.is_ready for each in node.members)


def _in_order(nodes: Sequence[ProcessNode], before: Sequence[ProcessNode]) -> list[ProcessNode]:
    """Nodes at their numbers in the round before; new ones where one has gone, and the last ones
    move up after that.
    """
    new = [node for node in nodes if node not in before]
    kept: list[ProcessNode] = []
    for node in before:
        if node in nodes:
            kept.append(node)
        elif new:
            kept.append(new.pop(0))
    return [*kept, *new]


def _in_order_of_ranks(node: ProcessNode, size: int) -> list[Member]:
    """The processes of a node at their numbers in the round before, and others where one has
    gone.
    """
    ready = [each for each in node.members if each.is_ready]
    kept = {
        each.local_rank: each
        for each in ready
        if each.local_rank is not None and each.local_rank < size
    }
    others = sorted(
        (each for each in ready if each not in kept.values()),
        key=lambda each: each.local_rank is None,
    )
    return [kept.get(number) or others.pop(0) for number in range(size)]
