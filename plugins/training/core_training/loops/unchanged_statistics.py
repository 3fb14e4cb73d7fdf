"""Statistics that a step leaves as they are: it runs on samples of another rank, since that makes
the step too.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def unchanged_statistics(module: nn.Module) -> Iterator[None]:
    """A context after which buffers, such as running means, and torchmetrics objects of a module
    are as before.
    """
    places = [
        (part, name, value)
        for part in module.modules()
        for name, value in (
            *part.named_buffers(recurse=False),
            *getattr(part, "metric_state", {}).items(),
        )
    ]
    copies: list[Any] = [
        value.clone() if isinstance(value, Tensor) else list(value) for _, _, value in places
    ]
    counters = [(part, part._update_count, part._forward_cache) for part in _metrics(module)]
    yield
    # In place, since objects may have a state in common.
    with torch.no_grad():
        for (part, name, value), copy in zip(places, copies, strict=True):
            if isinstance(value, Tensor):
                value.copy_(copy)
            else:
                value[:] = copy
            setattr(part, name, value)
    for metric, num_updates, newest in counters:
        metric._update_count, metric._forward_cache, metric._computed = num_updates, newest, None


def _metrics(module: nn.Module) -> list[Any]:
    """The module's torchmetrics objects. The library may not be installed: they are known by their
    attributes.
    """
    return [
        part
        for part in module.modules()
        if hasattr(part, "_update_count") and hasattr(part, "metric_state")
    ]
