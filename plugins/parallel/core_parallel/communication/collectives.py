"""Exchanges between the ranks of a group, with gradients that can be differentiated again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from core_parallel.following import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.graph import Node


def cut(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks, with the same tensor. This rank's part of it; the gradient is joined from those of
    all parts.
    """
    part = _exchange(tensor, group, partial(_own, dim), partial(_gathered, dim), False)
    exchanges.cut(tensor, part, dim, group)
    return part


def join(part: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks. The whole of all parts, with which all do the same; the gradient is the part's
    own.
    """
    whole = _exchange(part, group, partial(_gathered, dim), partial(_own, dim), True)
    exchanges.joined(part, whole, dim, group)
    return whole


def enter(tensor: Tensor, group: Any) -> Tensor:
    """All ranks, with the same tensor. The tensor, with which each does what is its own; gradients
    are added up.
    """
    return _exchange(tensor, group, _same, _added_up, False)


def add_up(term: Tensor, group: Any) -> Tensor:
    """All ranks. The sum of all terms, with which all do the same; the gradient is the term's
    own.
    """
    total = _exchange(term, group, _added_up, _same, True)
    exchanges.added_up(term, total, group)
    return total


def largest(values: Tensor, group: Any) -> Tensor:
    """All ranks. The largest of all ranks' values, by place, without a gradient."""
    found = values.detach().clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    exchanges.maximum(values, found, group)
    return found


def enter_columns(tensor: Tensor, width: int, group: Any) -> Tensor:
    """All ranks, with the same tensor. The tensor, of whose last columns each does what is its own;
    their gradients are added up.
    """
    return _exchange(tensor, group, _same, partial(_columns_added_up, width), False)


def gather(part: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks. The whole of all parts, with which each does what is its own; gradients are added
    up.
    """
    whole = _exchange(part, group, partial(_gathered, dim), partial(_sum_of_parts, dim))
    exchanges.joined(part, whole, dim, group)
    return whole


def swap(tensor: Tensor, cut_dim: int, joined_dim: int, group: Any) -> Tensor:
    """All ranks. A tensor that was in parts along one dim, and is along another; its gradient goes
    the way back.
    """
    there, back = partial(_swapped, cut_dim, joined_dim), partial(_swapped, joined_dim, cut_dim)
    swapped = _exchange(tensor, group, there, back)
    exchanges.swapped(tensor, swapped, cut_dim, joined_dim, group)
    return swapped


def send_rows(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """All ranks. The rows that others send to this one, in their order; gradients go the way back.

    Args:
        rows: for the first rank, for the second, and so on.
        sent: how many for each rank.
        received: how many from each.
        group: of the ranks.
    """
    there, back = partial(_arrived, sent, received), partial(_arrived, received, sent)
    return _exchange(rows, group, there, back)


def leads_into_parts(node: Node, group: Any, is_part: bool) -> bool:
    """Within a graph of gradients: whether what is behind a node is done by each rank of a group
    with its own part, or by all alike.

    Args:
        node: of the graph.
        group: of the ranks.
        is_part: the same of the node itself.
    """
    own, leads = getattr(node, "border", (None, None))
    if own is not group or leads is None:
        return is_part
    return bool(leads)


def _exchange(
    tensor: Tensor,
    group: Any,
    there: Callable[[Tensor, Any], Tensor],
    back: Callable[[Tensor, Any], Tensor],
    leads: bool | None = None,
) -> Tensor:
    """All ranks. The result of an exchange.

    Args:
        tensor: that this rank gives.
        group: of the ranks.
        there: the exchange.
        back: that of its gradient, whose own gradient goes there again.
        leads: see `leads_into_parts`.
    """
    found: Tensor = _Exchange.apply(tensor, group, there, back, leads)  # type: ignore[no-untyped-call]  # torch's
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, group: Any, there: Any, back: Any, leads: bool | None
    ) -> Tensor:
        """There."""
        ctx.ways, ctx.border = (there, back), (group, leads)
        result: Tensor = there(tensor, group)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Back, by an exchange that leads the other way."""
        (there, back), (group, leads) = ctx.ways, ctx.border
        opposite = {True: False, False: True}.get(leads)
        return _exchange(gradients[0], group, back, there, opposite), None, None, None, None


def _own(dim: int, tensor: Tensor, group: Any) -> Tensor:
    part: Tensor = tensor.chunk(group.size(), dim)[group.rank()].clone()
    return part


def _gathered(dim: int, part: Tensor, group: Any) -> Tensor:
    parts = [
        torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())
    ]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim)


def _same(tensor: Tensor, group: Any) -> Tensor:
    return tensor.clone()


def _added_up(term: Tensor, group: Any) -> Tensor:
    total = term.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _columns_added_up(width: int, tensor: Tensor, group: Any) -> Tensor:
    first, last = tensor.tensor_split([-width], -1)
    return torch.cat([first, _added_up(last, group)], -1)


def _sum_of_parts(dim: int, whole: Tensor, group: Any) -> Tensor:
    return _parts_of_all(whole, dim, group).sum(0)


def _swapped(cut_dim: int, joined_dim: int, tensor: Tensor, group: Any) -> Tensor:
    return torch.cat(list(_parts_of_all(tensor, cut_dim, group)), joined_dim)


def _parts_of_all(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks. Each rank's piece along a dim that is this rank's to have."""
    sent = torch.stack([part.contiguous() for part in tensor.chunk(group.size(), dim)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


def _arrived(sent: list[int], received: list[int], rows: Tensor, group: Any) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived
