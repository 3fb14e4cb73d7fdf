"""`16-mixed` and `16-true` where DeepSpeed scales the loss."""

from __future__ import annotations

from typing import Any

import torch

from core import Precision
from core.precision import MixedPrecision, UniformPrecision


class EngineScale(Precision):
    """The base of both: the engine scales the loss, and skips steps with gradients that overflowed.

    The scale is saved as torch's GradScaler saves it, so that it goes on under other strategies,
    and with it what only DeepSpeed counts: overflows that are left before the scale is lowered.
    """

    _strategy: Any = None

    def connect(self, strategy: Any) -> None:
        """Create the precision of the strategy whose engine scales. DeepSpeed itself says if the
        device has float16.
        """
        self._strategy = strategy

    def state_dict(self) -> dict[str, Any]:
        """The loss scale of the first engine, and for how many steps it has held; empty if it is
        fixed.
        """
        scaler = self._dynamic_scaler()
        if scaler is None:
            return {}
        return {
            "scale": float(scaler.cur_scale),
            "growth_factor": float(scaler.scale_factor),
            "backoff_factor": 1.0 / scaler.scale_factor,
            "growth_interval": scaler.scale_window,
            "_growth_tracker": scaler.cur_iter - scaler.last_overflow_iter - 1,
            "hysteresis": scaler.cur_hysteresis,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale; one that the user has fixed stays."""
        scaler = self._dynamic_scaler()
        if state and scaler is not None:
            scaler.cur_scale = state["scale"]
            scaler.last_overflow_iter = scaler.cur_iter - int(state["_growth_tracker"]) - 1
            scaler.cur_hysteresis = state.get("hysteresis", scaler.cur_hysteresis)

    def _dynamic_scaler(self) -> Any:
        engines = self._strategy.engines if self._strategy is not None else []
        scaler = getattr(engines[0].zero, "loss_scaler", None) if engines else None
        return scaler if scaler is not None and scaler.dynamic else None


class EngineScaledMixedPrecision(EngineScale, MixedPrecision):
    """`16-mixed`: weights in float16 with masters in float32."""

    def __init__(self) -> None:
        super().__init__(torch.float16)


class EngineScaledHalfPrecision(EngineScale, UniformPrecision):
    """`16-true`: the same while it trains; what is left on the module afterwards is in float16."""

    def __init__(self) -> None:
        super().__init__(torch.float16)


ENGINE_SCALED = {"16-mixed": EngineScaledMixedPrecision, "16-true": EngineScaledHalfPrecision}
