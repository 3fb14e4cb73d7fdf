"""The losses that a run with growing learning rates has had, and the rate that they suggest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from core.contract import ConfigurationError
from core_training.settings.warn_at import warn_caller


@dataclass
class LearningRateCurve:
    """Smoothed losses by learning rate.

    Attributes:
        mode: how the rates grow, `"exponential"` or `"linear"`.
        lr_min, lr_max: the first and the last rate.
        num_training: number of rates.
        results: `"lr"` and `"loss"`, two lists of one length, which is less than `num_training` if
            the search has stopped early.
    """

    mode: Literal["exponential", "linear"]
    lr_min: float
    lr_max: float
    num_training: int
    results: dict[str, list[float]] = field(
        default_factory=lambda: {"lr": [], "loss": []}, repr=False
    )

    def rate_at(self, index: int) -> float:
        """The rate of a step, from 0 to `num_training` - 1."""
        share = index / (self.num_training - 1)
        if self.mode == "linear":
            return self.lr_min + (self.lr_max - self.lr_min) * share
        return math.exp(
            math.log(self.lr_min) + (math.log(self.lr_max) - math.log(self.lr_min)) * share
        )

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the smoothed loss falls most steeply, over the axis on which the rates
        grow evenly.

        Args:
            skip_begin: rates at the beginning that don't count.
            skip_end: rates at the end that don't count.

        Returns:
            The rate; None, with a warning, if fewer than two are left, or the loss falls nowhere.
        """
        kept = slice(skip_begin, len(self.results["lr"]) - skip_end)
        rates = torch.tensor(self.results["lr"][kept], dtype=torch.float64)
        reason = f"only {len(self.results['lr'])} losses are there"
        if len(rates) > 1:
            axis = rates
            if self.mode == "exponential":
                axis = rates.log10()
            losses = torch.tensor(self.results["loss"][kept], dtype=torch.float64)
            slopes = torch.gradient(losses, spacing=(axis,))[0]
            if slopes.min() < 0:
                return self.results["lr"][kept][int(slopes.argmin())]
            reason = "the loss falls nowhere"
        warn_caller(
            f"The search for a learning rate suggests none: {reason} (skip_begin={skip_begin}, "
            f"skip_end={skip_end}). Look at plot(), and try more steps or other limits.",
        )
        return None

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """Draw the curve with matplotlib.

        Args:
            suggest: mark the suggestion.
            show: open the window, or show the figure in a notebook.
            ax: matplotlib's axes to draw on; None makes a figure.

        Returns:
            The figure.

        Raises:
            ConfigurationError: matplotlib isn't installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigurationError(
                "plot() draws with matplotlib. Install it: pip install matplotlib"
            ) from None
        if ax is None:
            _, ax = pyplot.subplots()
        ax.plot(self.results["lr"], self.results["loss"])
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("loss, smoothed")
        rate = None
        if suggest:
            rate = self.suggestion()
        if rate is not None:
            loss = self.results["loss"][self.results["lr"].index(rate)]
            ax.plot(rate, loss, "ro", label=f"{rate:.3g}")
            ax.legend()
        if show:
            pyplot.show()
        return ax.get_figure()
