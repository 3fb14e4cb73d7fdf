"""torchmetrics' objects, whose own exchange hands tensors of the device to gloo, which takes those
of the CPU only.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


@contextmanager
def defaults_on_host(module: nn.Module) -> Iterator[None]:
    """A context in which a module is moved, but not the values with which its metrics begin anew.

    `reset` clones them, and on the device a clone shares the memory of what it is a clone of. The
    first change of the state in place takes that memory, and the next `reset` would find nothing
    there.
    """
    kept = [
        (
            part,
            {
                name: value.cpu()
                for name, value in part._defaults.items()  # type: ignore[union-attr,operator]
                if isinstance(value, Tensor)
            },
        )
        for part in module.modules()
        # the library may not be installed
        if hasattr(part, "_reductions") and hasattr(part, "_defaults")
    ]
    yield
    for part, defaults in kept:
        part._defaults.update(defaults)  # type: ignore[union-attr,operator]


def exchange_by(gather: Callable[..., list[Tensor]], module: nn.Module) -> Iterator[Any]:
    """Make the metrics in a module gather their states by a function, but those that have a way of
    their own.

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
