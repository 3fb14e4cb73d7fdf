"""The whole weights of a step: recorded by the reference, compared by each other contender while it
runs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from core_plan.compared.task import Task


class WeightRecord:
    """Records weights into the reference's folder, or compares them with those that are there. Of
    all ranks.

    A tensor counts whole where that fits the budget, and by every n-th of its elements otherwise,
    the same ones in each run.

    Attributes:
        distances: by step, a list of names with the distance of each tensor from the reference's:
            as a part of how far the reference has moved it from the beginning, and its largest
            element.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._folder = Path(task.reference)
        self._begin: dict[str, Tensor] = {}
        self.distances: dict[int, list[tuple[str, float, float]]] = {}

    def take(
        self, step: int, streams: Iterable[Any], buffers: frozenset[str], is_global_zero: bool
    ) -> None:
        """All ranks, between two steps, at a step of `weight_steps`.

        Args:
            step: number of optimizer steps.
            streams: of `fabric.weights`, one a module.
            buffers: names that are left out.
            is_global_zero: whether this rank keeps them.
        """
        found: dict[str, Tensor] = {}
        for number, stream in enumerate(streams):
            stride = self._stride(stream)
            for name, tensor in stream:
                if is_global_zero and name not in buffers:
                    key = name if number == 0 else f"{number}.{name}"
                    found[key] = tensor.detach().reshape(-1)[::stride].to("cpu", copy=True)
        if not is_global_zero:
            return
        path = self._folder / f"{step}.pt"
        if self._task.writes_reference:
            torch.save(found, path)
            return
        expected = torch.load(path, weights_only=True)
        if step == 0:
            self._begin = expected
        self.distances[step] = [
            (name, *self._distance(name, found.get(name), expected[name])) for name in expected
        ]

    def _stride(self, stream: Any) -> int:
        total: int = sum(
            described.dtype.itemsize * math.prod(described.shape) for described in stream.metadata()
        )
        return max(1, -(-total * len(self._task.weight_steps) // self._task.budget_bytes))

    def _distance(self, name: str, found: Tensor | None, expected: Tensor) -> tuple[float, float]:
        if found is None or found.shape != expected.shape:
            return float("inf"), float("inf")
        if not expected.numel():
            return 0.0, 0.0
        difference = found.double() - expected.double()
        norm, largest = float(difference.norm()), float(difference.abs().max())
        begin = self._begin.get(name)
        moved = (
            expected.double()
            if begin is None or begin is expected
            else expected.double() - begin.double()
        )
        scale = float(moved.norm()) or float(expected.double().norm())
        return (norm / scale if scale else float(norm > 0)), largest


def disturb(optimizer: torch.optim.Optimizer) -> None:
    """Change the parameters of an optimizer by about four units of rounding, the same ones in each
    run.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ):
            local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            noise = (
                torch.rand(local.shape, generator=generator).to(local.device, torch.float32) * 2 - 1
            )
            if local.is_floating_point() and local.numel():
                local.mul_((1 + 4 * torch.finfo(local.dtype).eps * noise).to(local.dtype))
