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
    before: list[tuple[Any, str, Any, Any]] = []
    counters: list[tuple[Any, int, object]] = []
    part: Any
    for part in module.modules():
        states: dict[str, Any] = dict(part.named_buffers(recurse=False))
        if hasattr(part, "metric_state"):  # torchmetrics, which may not be installed
            states.update(part.metric_state)
            counters.append((part, part._update_count, part._forward_cache))
        for name, value in states.items():
            copied = value.clone() if isinstance(value, Tensor) else list(value)
            before.append((part, name, value, copied))
    yield
    # In place, since objects may have a state in common.
    with torch.no_grad():
        for part, name, value, copied in before:
            if isinstance(value, Tensor):
                value.copy_(copied)
            else:
                value[:] = copied
            setattr(part, name, value)
    for metric, num_updates, newest in counters:
        metric._update_count, metric._forward_cache, metric._computed = num_updates, newest, None
