"""An all-gather within the graph, in the order of ranks, through which gradients flow back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core_xla import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def rows_of_ranks(rank: int, world_size: int) -> tuple[int, ...]:
    """All ranks. The row that each rank has in what torch_xla gathers: its own order of processes
    is its own affair.

    Raises:
        ConfigurationError: other ranks came than those of the run, so that its collectives do
            something else.
    """
    ranks = _stacked(torch.tensor(rank, device="xla")).tolist()
    if sorted(ranks) != list(range(world_size)):
        raise ConfigurationError(
            f"torch_xla's collectives reach ranks {ranks}, and the run has {world_size} processes, "
            "of which each should come once. Start the ranks by the launcher of this strategy, "
            "which is torch_xla.launch."
        )
    return tuple(ranks.index(rank) for rank in range(world_size))


def gather(tensor: Tensor, rank: int, rows: Sequence[int]) -> Tensor:
    """All ranks. A tensor of a device, of shape (...), stacked over ranks to (world_size, ...);
    nothing waits.

    Args:
        tensor: of one shape on all ranks. Its gradient is the sum of what all ranks want of it.
        rank: of this process.
        rows: the row of each rank, of `rows_of_ranks`.
    """
    gathered: Tensor = _GatherInGraph.apply(tensor, rank, rows)  # type: ignore[no-untyped-call]  # torch's
    return gathered


class _GatherInGraph(torch.autograd.Function):
    """torch_xla's own hands each rank the gradient of its own use only."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rank: int, rows: Sequence[int]) -> Tensor:
        ctx.rank = rank
        stacked = _stacked(tensor)
        return (
            stacked
            if list(rows) == list(range(len(rows)))
            else torch.stack([stacked[row] for row in rows])
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total: Tensor = library.torch_xla("core.xla_model").all_reduce("sum", gradient.clone())
        return total[ctx.rank], None, None


def _stacked(tensor: Tensor) -> Tensor:
    # Its default pins the layout by gathering with a sum over zeros: as many times the traffic as
    # there are ranks.
    gathered: Tensor = library.torch_xla("core.xla_model").all_gather(
        tensor.unsqueeze(0), dim=0, pin_layout=False
    )
    return gathered
