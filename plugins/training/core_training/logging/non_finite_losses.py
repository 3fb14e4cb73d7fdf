"""Losses that are NaN or infinite: a warning where a loss is read anyway, or the end of the run if
a user wants it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import NonFiniteLossError
from core.strategies import class_name
from core_training.settings.warn_at import warn_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

    from core.contract import Strategy
    from core_training.progress import Progress

_TRAINING = "training"
_CURE = (
    "Weights that come of it are useless. Trainer(terminate_on_nan=True) ends the run before such "
    "a loss reaches them, and detect_anomaly=True finds the operation whose gradient is NaN. A "
    "smaller learning rate, gradient_clip_val, or another precision may prevent it."
)


def loss_in(output: object) -> object:
    """The loss in what a `training_step` returns, whatever it is; None if there is none."""
    return output.get("loss") if isinstance(output, dict) else output


def weight_in(output: object) -> Any:
    """The number of items that the loss is a mean over; None if none was given."""
    return output.get("weight") if isinstance(output, dict) else None


class NonFiniteLossCheck:
    """Warns once a stage of a training loss, and once of every other loss that is logged. Never
    waits for the device.

    Its callers look where values are read in any case: when the bar is drawn, when loggers get a
    step's values, and at an epoch's end. What is logged counts as a loss if its name says so.

    Attributes:
        since: the step at which the loss was first seen not to be finite, if it is still so; else
            None.
    """

    def __init__(self, progress: Progress, *, warns: bool = True) -> None:
        self._progress, self._warns = progress, warns
        self._warned: set[str] = set()
        self._last_finite: int | None = None
        self.since: int | None = None
        self._value: object = None

    def begin_stage(self) -> None:
        """Forget the warnings given so far."""
        self._warned.clear()
        self._last_finite = self.since = None

    @property
    def end(self) -> str:
        """A sentence if the loss wasn't finite any more when it was last looked at; else empty."""
        if self.since is None:
            return ""
        after = "or before"
        if self._last_finite is not None:
            after = f"at the latest, and not before step {self._last_finite}"
        return (
            f"The loss has been {self._value} since step {self.since} {after}: weights that "
            "come of it are useless."
        )

    @staticmethod
    def scalar_of(output: object) -> Tensor | None:
        """The plain loss, of one element, in an output of `training_step`; None if there is
        none.
        """
        loss = loss_in(output)
        return loss.detach() if type(loss) is Tensor and loss.numel() == 1 else None

    def look_at_output(
        self, output: Any, module: nn.Module, strategy: Strategy, value: float | None = None
    ) -> None:
        """Check the last output of the module's `training_step` on this rank.

        Args:
            output: a loss, or a dict with one.
            module: whose step it is.
            strategy: has the rank.
            value: of the loss, where it was read already; None to wait for it here.
        """
        loss = loss_in(output)
        if not isinstance(loss, Tensor):
            return
        if _is_finite(loss) if value is None else math.isfinite(value):
            self._last_finite, self.since = self._progress.global_step, None
        elif weight_in(output) != 0:
            self.since = self.since or self._progress.global_step
            self._value = _shown(loss)
            what = f"{class_name(module)}.training_step returned a loss of {self._value}"
            if strategy.world_size > 1:
                what += f" on rank {strategy.global_rank}"
            self._warn(_TRAINING, what, getattr(type(module), "training_step", None))

    def look_at_values(
        self, values: Mapping[str, float], *, training: Collection[str] = ()
    ) -> None:
        """Logged values by name, of which some are training's."""
        for name, value in values.items():
            if not math.isfinite(value) and "loss" in name.lower():
                # One warning for the loss that training_step returned and one that it logged.
                key = _TRAINING if name in training else name
                self._warn(key, f"The logged loss {name!r} is {value}")

    def _warn(self, key: str, what: str, function: Callable[..., object] | None = None) -> None:
        if self._warns and key not in self._warned:
            self._warned.add(key)
            step, epoch = self._progress.global_step, self._progress.epoch
            warn_at(function, f"{what}, seen at step {step}, in epoch {epoch}. {_CURE}")


def refuse_non_finite(loss: Tensor, what: str, progress: Progress, batch_idx: int) -> None:
    """End the run by a loss that is NaN or infinite. Waits for the device.

    Args:
        loss: of any shape.
        what: says where it comes from, as in `"Net.training_step returned"`.
        progress: of the run.
        batch_idx: of the epoch.

    Raises:
        NonFiniteLossError: it isn't finite.
    """
    if _is_finite(loss):
        return
    raise NonFiniteLossError(
        f"{what} a loss of {_shown(loss)} for batch {batch_idx} of epoch {progress.epoch}, after "
        f"{progress.global_step} optimizer steps, and terminate_on_nan=True. With automatic "
        "optimization nothing was learned from that batch: weights are those of the step before. "
        "detect_anomaly=True finds the operation whose gradient is NaN.",
        epoch=progress.epoch,
        batch_idx=batch_idx,
        global_step=progress.global_step,
    )


def _is_finite(loss: Tensor) -> bool:
    if loss.numel() == 1:
        return math.isfinite(loss.item())
    return bool(torch.isfinite(loss.detach()).all())


def _shown(loss: Tensor) -> object:
    return loss.item() if loss.numel() == 1 else loss
