"""`barebones=True`: a loop with nothing around it, to measure what the rest costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.trainer.logging.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEFT_OUT = (
    "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "num_sanity_val_steps",
    "log_every_n_steps", "fast_dev_run", "detect_anomaly", "terminate_on_nan", "profiler",
)  # fmt: skip


class NoMetrics(Metrics):
    """Takes everything that is logged, and keeps nothing."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Do nothing."""


def check_barebones(given: Mapping[str, Any]) -> None:
    """Refuse arguments that ask for what barebones leaves out.

    Args:
        given: the Trainer's arguments, by name; None, False and 0 ask for nothing.

    Raises:
        ConfigurationError: with the first one.
    """
    for name in _LEFT_OUT:
        if value := given[name]:
            raise ConfigurationError(
                f"barebones=True leaves out everything but the loop, and {name}={value!r} was passed. "
                "Leave one of the two out."
            )
