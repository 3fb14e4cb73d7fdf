"""Metrics that are updated in steps: all replicas of a module share the module's own, and take
turns at it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from core.data import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

TURN = RLock()
"""Held by the replica that logs, or uses a metric: a metric's forward updates and computes
itself.
"""

_OWN = ("update", "compute", "reset")
_CALLED = (*_OWN, "forward")


@contextmanager
def taking_turns(module: nn.Module, device: torch.device) -> Iterator[None]:
    """A context in which threads take turns at the metrics of a module, with arguments that come
    from any device.

    Args:
        module: that is replicated.
        device: of its metrics.
    """
    metrics = {id(metric): metric for _, _, metric in _metrics_in(module)}.values()
    before = [
        {name: vars(metric)[name] for name in _CALLED if name in vars(metric)} for metric in metrics
    ]
    for metric in metrics:
        vars(metric).update({name: _in_turn(getattr(metric, name), device) for name in _CALLED})
    try:
        yield
    finally:
        for metric, own in zip(metrics, before, strict=True):
            for name in _CALLED:
                del vars(metric)[name]
            vars(metric).update(own)


def share(module: nn.Module, replicas: Sequence[nn.Module]) -> None:
    """Copy the metrics of a module to its replicas, whose copies would be forgotten with them."""
    for path, name, metric in _metrics_in(module):
        for replica in replicas:
            replica.get_submodule(path)._modules[name] = metric


def _metrics_in(module: nn.Module, path: str = "") -> Iterator[tuple[str, str, nn.Module]]:
    """Path and name of the place, and the metric or collection there. torchmetrics may not be
    installed.
    """
    for name, child in module._modules.items():
        if child is None:
            continue
        if all(callable(getattr(child, method, None)) for method in _OWN):
            yield path, name, child
        else:
            yield from _metrics_in(child, f"{path}.{name}".lstrip("."))


def _in_turn(method: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def to_device(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    @wraps(method)
    def in_turn(*arguments: Any, **options: Any) -> Any:
        with TURN:
            return method(*map_leaves(to_device, arguments), **map_leaves(to_device, options))

    return in_turn
