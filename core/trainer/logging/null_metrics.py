"""A metric collector that keeps nothing."""

from __future__ import annotations

from typing import Any

from core.trainer.logging.metric_collector import MetricCollector


class NullMetricCollector(MetricCollector):
    """Discards everything that is logged."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Do nothing."""
