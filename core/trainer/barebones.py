"""`barebones=True`: a loop with nothing around it, to measure what the rest costs."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError
from core.trainer.metrics import Metrics


class NoMetrics(Metrics):
    """Takes everything that is logged, and keeps nothing."""

    def log(self, name: str, value: Any, *options: Any) -> None:
        """Nothing."""


def check_barebones(**given: Any) -> None:
    """Refuse arguments that ask for what barebones leaves out.

    Args:
        given: what the user passed for them; None, False and 0 ask for nothing.

    Raises:
        ConfigurationError: with the first one.
    """
    for name, value in given.items():
        if value:
            raise ConfigurationError(
                f"barebones=True leaves out everything but the loop, and {name}={value!r} was passed. "
                "Leave one of the two out."
            )
