"""Metrics of a loop by hand, on their way to its loggers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.contract import Logger
    from core.fabric.fabric import Fabric


class MetricLog:
    """Counts the calls that name no step, and has loggers write their last values when the Fabric
    goes.
    """

    def __init__(self) -> None:
        self._num_logs = 0
        self._saving: weakref.finalize[..., object] | None = None

    def log(self, fabric: Fabric, metrics: Mapping[str, float | Tensor], step: int | None) -> None:
        """All ranks. Hand values to the loggers, on rank 0; see `Fabric.log_dict`."""
        if step is None:
            step = self._num_logs
            self._num_logs += 1
        if fabric.loggers and fabric.is_global_zero:
            values = {name: _as_number(name, value) for name, value in metrics.items()}
            if self._saving is None or not self._saving.alive:
                # Loggers keep values back, and a user's own loop doesn't say when it has logged its
                # last value.
                self._saving = weakref.finalize(fabric, _save, fabric.loggers)
            for logger in fabric.loggers:
                logger.log_metrics(values, step)

    def save(self) -> None:
        """This rank; idempotent. Have the loggers write what was logged."""
        if self._saving is not None:
            self._saving()


def _save(loggers: Sequence[Logger]) -> None:
    for logger in loggers:
        logger.save()


def _as_number(name: str, value: Any) -> float:
    is_tensor = isinstance(value, Tensor)
    if not hasattr(value, "__float__") or (is_tensor and value.numel() != 1):
        what = f"{type(value).__name__} {value!r}"
        if is_tensor:
            what = f"a tensor of shape {tuple(value.shape)}"
        raise ConfigurationError(
            f"log({name!r}): expected a number or a tensor of one element, got {what}."
        )
    if is_tensor:
        value = value.detach()
    return float(value)
