"""Metrics that keep nothing."""

from __future__ import annotations

from typing import Any

from core.trainer.logging.metrics import Metrics


class NoMetrics(Metrics):
    """Takes everything that is logged, and keeps nothing."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Do nothing."""
