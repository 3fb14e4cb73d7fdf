"""The results of torchmetrics objects, which are computed once, before hooks at an epoch's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.trainer.logging import log_errors


@dataclass(frozen=True, slots=True)
class ComputedMetric:
    """The result of a torchmetrics object, after so many updates."""

    metric: Any
    value: float
    num_updates: int

    @property
    def is_stale(self) -> bool:
        """True if the object was updated since."""
        return _num_updates(self.metric) > self.num_updates

    @classmethod
    def of(cls, name: str, metric: Any, *, recompute: bool) -> ComputedMetric:
        """All ranks. Compute; `recompute` forgets what was computed before, since another rank's object was updated."""
        for part in _parts_of(metric) if recompute else ():
            part._computed = None
        return cls(metric, log_errors.as_value(name, metric.compute()), _num_updates(metric))


def _num_updates(metric: Any) -> int:
    return sum(part._update_count for part in _parts_of(metric))


def _parts_of(metric: Any) -> list[Any]:
    """A torchmetrics object, and those that it is made of; none of another library."""
    return [part for part in metric.modules() if hasattr(part, "_update_count")] if hasattr(metric, "modules") else []
