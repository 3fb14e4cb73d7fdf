"""Throughput of a loop of the user's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from core import ConfigurationError, Fabric

_GROWING = {"time": "time", "batches": "batches", "samples": "samples", "lengths": "items"}
"""The totals, and what their rates are named after."""


class Throughput:
    """Rates over a window of updates: batches, samples, items and FLOPs a second, of a device and
    of all.

    Args:
        available_flops: FLOPs a second of one device at best, for the utilization `mfu`.
        world_size: number of devices; rates of all are there from 2 on.
        window_size: number of updates.
        separator: stands between `device` and a rate's name.
    """

    def __init__(
        self,
        available_flops: float | None = None,
        world_size: int = 1,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        if world_size < 1 or window_size < 2:
            raise ConfigurationError(
                f"Throughput(world_size={world_size}, window_size={window_size}): expected 1 and "
                "2, or more."
            )
        self.available_flops, self.world_size, self.separator = (
            available_flops,
            world_size,
            separator,
        )
        self._totals: dict[str, deque[float]] = {
            name: deque(maxlen=window_size) for name in _GROWING
        }
        self._flops: deque[float] = deque(maxlen=window_size)

    def update(
        self,
        *,
        time: float,
        batches: int,
        samples: int,
        lengths: int | None = None,
        flops: int | None = None,
    ) -> None:
        """Note the totals of this device so far, and the FLOPs since the last update.

        Args:
            time: seconds.
            batches: number of batches.
            samples: number of samples, at least `batches`.
            lengths: number of items in the samples, at least `samples`; with all updates or none.
            flops: FLOPs since the last update.
        """
        given = {"time": time, "batches": batches, "samples": samples}
        given |= {} if lengths is None else {"lengths": lengths}
        if samples < batches or (lengths is not None and lengths < samples):
            raise ValueError(
                f"Throughput: {batches=}, {samples=}, {lengths=}: each must be at least the one "
                "before."
            )
        for name, total in given.items():
            before = self._totals[name]
            if before and before[-1] > total:
                raise ValueError(
                    f"Throughput: {name} fell from {before[-1]} to {total}; a total never falls."
                )
            before.append(total)
        if lengths is not None and len(self._totals["lengths"]) != len(self._totals["samples"]):
            raise RuntimeError(
                "Throughput: lengths came with some updates only. Pass them with all or none."
            )
        if flops is not None:
            self._flops.append(flops * self.world_size)

    def compute(self) -> dict[str, float]:
        """The totals, and the rates once the window is full."""
        metrics: dict[str, float] = {
            name: totals[-1] for name, totals in self._totals.items() if totals
        }
        times = self._totals["time"]
        if len(times) < (times.maxlen or 0):
            return metrics
        seconds = times[-1] - times[0]
        for name, rate in _GROWING.items():
            totals = self._totals[name]
            if name != "time" and len(totals) == totals.maxlen:
                self._add(metrics, rate, (totals[-1] - totals[0]) / seconds)
        if len(self._flops) == self._flops.maxlen:
            each = (sum(self._flops) - self._flops[0]) / seconds / self.world_size
            self._add(metrics, "flops", each)
            if self.available_flops:
                metrics[f"device{self.separator}mfu"] = each / self.available_flops
        return metrics

    def _add(self, metrics: dict[str, float], rate: str, of_device: float) -> None:
        metrics[f"device{self.separator}{rate}_per_sec"] = of_device
        if self.world_size > 1:
            metrics[f"{rate}_per_sec"] = of_device * self.world_size

    def reset(self) -> None:
        """Begin anew."""
        for window in (*self._totals.values(), self._flops):
            window.clear()


class ThroughputMonitor(Throughput):
    """Throughput that rank 0 hands to a Fabric's loggers.

    Pass `available_flops` for the utilization: core has no table of devices.
    """

    def __init__(self, fabric: Fabric, **options: Any) -> None:
        super().__init__(world_size=fabric.world_size, **options)
        self._fabric = fabric
        self.step = -1

    def update(self, **totals: Any) -> None:
        """Rank 0. See `Throughput.update`."""
        if self._fabric.is_global_zero:
            super().update(**totals)

    def compute(self) -> dict[str, float]:
        """Rank 0. See `Throughput.compute`; empty on other ranks."""
        return super().compute() if self._fabric.is_global_zero else {}

    def compute_and_log(self, step: int | None = None) -> dict[str, float]:
        """Rank 0. Compute, and log under a step, by default the number of calls so far."""
        self.step = self.step + 1 if step is None else step
        metrics = self.compute()
        if metrics:
            self._fabric.log_dict(metrics, step=self.step)
        return metrics


def measure_flops(
    model: nn.Module,
    forward_fn: Callable[[], Tensor],
    loss_fn: Callable[[Tensor], Tensor] | None = None,
) -> int:
    """FLOPs of a forward pass, and of backward if there is a loss. A model on `meta` will do."""
    with FlopCounterMode(display=False) as counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()
    return int(counter.get_total_flops())
