"""The base of what shows how far a run has come."""

from __future__ import annotations

from core.trainer.callbacks.callback import Callback


class ProgressBar(Callback):
    """Shows how far a run has come. Meant to be subclassed: a trainer that is given one makes no other.

    What is logged with `prog_bar=True` is in `trainer.progress_bar_metrics`; reading it waits for the device, so read
    it only when drawing. Totals are in `trainer.loaders`, positions in `trainer.progress`.
    """

    runs_last = True  # metrics of training epochs are complete only then
