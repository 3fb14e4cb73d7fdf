"""Optimizer and scheduler that a config names, for a module that makes none itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


class ConfiguredOptimizers:
    """Replaces a module's `configure_optimizers`. Copied and pickled with its module.

    Args:
        module: whose parameters that require gradients are trained.
        optimizer: its `class_path`, and perhaps `init_args`.
        scheduler: likewise; None for none.
        interval: after which the scheduler steps, `"epoch"` or `"step"`.
        monitor: name of the metric that the scheduler watches.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Mapping[str, Any],
        scheduler: Mapping[str, Any] | None,
        interval: str,
        monitor: str | None,
    ) -> None:
        self._module, self._optimizer, self._scheduler = module, optimizer, scheduler
        self._interval, self._monitor = interval, monitor

    def __call__(self) -> dict[str, Any]:
        """Make both."""
        trained = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        optimizer = _make(self._optimizer, trained)
        if self._scheduler is None:
            return {"optimizer": optimizer}
        scheduler = {"scheduler": _make(self._scheduler, optimizer), "interval": self._interval}
        if self._monitor is not None:
            scheduler["monitor"] = self._monitor
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def makes_optimizers(module: object) -> bool:
    """True if a module, or a class of them, has a `configure_optimizers` of its own."""
    own = getattr(module, "configure_optimizers", None)
    return own is not None and getattr(own, "__func__", own) is not Module.configure_optimizers


def give_optimizers(module: Any, config: Mapping[str, Any]) -> None:
    """Set a module's `configure_optimizers` to the optimizer and the scheduler of a config, if it
    names any.

    Raises:
        ConfigurationError: the module makes them itself, or there is a scheduler alone.
    """
    optimizer, scheduler = config.get("optimizer"), config.get("lr_scheduler")
    if optimizer is None and scheduler is None:
        return
    if makes_optimizers(module):
        raise ConfigurationError(
            f"The config names an optimizer or a scheduler, and {type(module).__name__} makes its "
            "own in configure_optimizers. Leave one of them out."
        )
    if optimizer is None:
        raise ConfigurationError(
            "The config names an lr_scheduler without an optimizer. Add one: --optimizer SGD."
        )
    interval, monitor = config["lr_scheduler_interval"], config["lr_scheduler_monitor"]
    module.configure_optimizers = ConfiguredOptimizers(
        module, optimizer, scheduler, interval, monitor
    )


def _make(described: Mapping[str, Any], first: Any) -> Any:
    home, _, name = described["class_path"].rpartition(".")
    options = described.get("init_args") or {}
    return getattr(importlib.import_module(home), name)(first, **dict(options))
