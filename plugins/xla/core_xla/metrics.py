"""torchmetrics' objects, whose own exchange hands tensors of the device to gloo, which takes those of the CPU only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn


def exchange_by(gather: Callable[..., list[Tensor]], module: nn.Module) -> Iterator[Any]:
    """Let the metrics in a module gather their states by a function, but those that have a way of their own.

    Yields:
        each such metric; its `dist_sync_fn` was None.
    """
    for part in module.modules():
        # Known by its attributes: the library may not be installed.
        if hasattr(part, "_reductions") and getattr(part, "dist_sync_fn", gather) is None:
            part.dist_sync_fn = gather  # type: ignore[assignment]  # an attribute of a metric
            yield part


def gather_over_host(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """All ranks. The tensor of each, of any shape, on the device."""
    from torchmetrics.utilities.distributed import gather_all_tensors

    return [part.to(tensor.device) for part in gather_all_tensors(tensor.cpu(), group)]


def as_it_is(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """This host. The tensor alone: it is of all hosts already."""
    return [tensor]
