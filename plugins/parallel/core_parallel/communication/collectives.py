"""Exchanges between the ranks of a group, with gradients that can be differentiated again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from core_parallel.following import exchanges

if TYPE_CHECKING:
    from torch.autograd.graph import Node


def cut(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks, with the same tensor. This rank's part of it; the gradient is joined from those of
    all parts.
    """
    part: Tensor = _Cut.apply(tensor, dim, group)  # type: ignore[no-untyped-call]  # torch's
    exchanges.cut(tensor, part, dim, group)
    return part


def join(part: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks. The whole of all parts, with which all do the same; the gradient is the part's
    own.
    """
    whole: Tensor = _Join.apply(part, dim, group)  # type: ignore[no-untyped-call]  # torch's
    exchanges.joined(part, whole, dim, group)
    return whole


def enter(tensor: Tensor, group: Any) -> Tensor:
    """All ranks, with the same tensor. The tensor, with which each does what is its own; gradients
    are added up.
    """
    entered: Tensor = _Enter.apply(tensor, group)  # type: ignore[no-untyped-call]  # torch's
    return entered


def gather(part: Tensor, dim: int, group: Any) -> Tensor:
    """All ranks. The whole of all parts, with which each does what is its own; gradients are added
    up.
    """
    whole: Tensor = _Gather.apply(part, dim, group)  # type: ignore[no-untyped-call]  # torch's
    exchanges.joined(part, whole, dim, group)
    return whole


def add_up(term: Tensor, group: Any) -> Tensor:
    """All ranks. The sum of all terms, with which all do the same; the gradient is the term's
    own.
    """
    total: Tensor = _AddUp.apply(term, group)  # type: ignore[no-untyped-call]  # torch's
    exchanges.added_up(term, total, group)
    return total


def largest(values: Tensor, group: Any) -> Tensor:
    """All ranks. The largest of all ranks' values, by place, without a gradient."""
    found = values.detach().clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    exchanges.maximum(values, found, group)
    return found


def leads_into_parts(node: Node, group: Any) -> bool | None:
    """Within a graph of gradients: whether what is behind a node is done by each rank of a group
    with its own part (True), or by all alike (False). None: it is as the node.
    """
    own, leads = getattr(node, "border", (None, None))
    return leads if own is group else None


def swap(tensor: Tensor, cut_dim: int, joined_dim: int, group: Any) -> Tensor:
    """All ranks. A tensor that was in parts along one dim, and is along another; its gradient goes
    the way back.
    """
    swapped: Tensor = _Swap.apply(tensor, cut_dim, joined_dim, group)  # type: ignore[no-untyped-call]  # torch's
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
    arrived: Tensor = _SendRows.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]  # torch's
    return arrived


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: Any) -> Tensor:
        """Cut."""
        ctx.dim, ctx.group, ctx.border = dim, group, (group, False)
        part: Tensor = tensor.chunk(group.size(), dim)[group.rank()].clone()
        return part

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The whole gradient."""
        return join(gradients[0], ctx.dim, ctx.group), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Any) -> Tensor:
        """Gather."""
        ctx.dim, ctx.group, ctx.border = dim, group, (group, True)
        return _gathered(part, dim, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The own part: every rank has the gradient of the whole."""
        return cut(gradients[0], ctx.dim, ctx.group), None, None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        """The same."""
        ctx.group, ctx.border = group, (group, False)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The sum of what all ranks give to it."""
        return add_up(gradients[0], ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Any) -> Tensor:
        """Gather."""
        ctx.dim, ctx.group = dim, group
        return _gathered(part, dim, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The sum of what all ranks give to this part."""
        return _SumOfParts.apply(gradients[0], ctx.dim, ctx.group), None, None  # type: ignore[no-untyped-call]  # torch's


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, group: Any) -> Tensor:
        """Send each rank what this one has of its part, and add up what comes."""
        ctx.dim, ctx.group = dim, group
        parts = torch.stack([part.contiguous() for part in whole.chunk(group.size(), dim)])
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return received.sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of all parts."""
        return gather(gradients[0], ctx.dim, ctx.group), None, None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, term: Tensor, group: Any) -> Tensor:
        """Add up."""
        ctx.group, ctx.border = group, (group, True)
        total = term.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """As it is: every rank has the gradient of the whole."""
        return enter(gradients[0], ctx.group), None


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cut_dim: int, joined_dim: int, group: Any) -> Tensor:
        """Swap."""
        ctx.cut_dim, ctx.joined_dim, ctx.group = cut_dim, joined_dim, group
        sent = torch.stack([part.contiguous() for part in tensor.chunk(group.size(), cut_dim)])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(list(received), joined_dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Swap back."""
        return swap(gradients[0], ctx.joined_dim, ctx.cut_dim, ctx.group), None, None, None


class _SendRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        """Send."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Send back."""
        return send_rows(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _gathered(part: Tensor, dim: int, group: Any) -> Tensor:
    parts = [
        torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())
    ]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim)
