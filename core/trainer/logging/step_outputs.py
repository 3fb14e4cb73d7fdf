"""The parts of what a `training_step` returns: a loss, or a dict with one and perhaps with its weight."""

from __future__ import annotations

from typing import Any


def loss_in(output: Any) -> Any:
    """The loss, whatever it is; None if there is none."""
    return output.get("loss") if isinstance(output, dict) else output


def weight_in(output: Any) -> Any:
    """The number of items that the loss is a mean over; None if none was given."""
    return output.get("weight") if isinstance(output, dict) else None
