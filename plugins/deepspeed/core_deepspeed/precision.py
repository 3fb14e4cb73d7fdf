"""`16-mixed` where DeepSpeed scales the loss."""

from __future__ import annotations

from typing import Any

import torch

from core.precision import MixedPrecision


class EngineScaledPrecision(MixedPrecision):
    """Weights in float16 with masters in float32; the engine scales the loss.

    The scale is saved as torch's GradScaler saves it, so that it goes on under other strategies.
    """

    def __init__(self) -> None:
        super().__init__(torch.float16)
        self._strategy: Any = None

    def connect(self, strategy: Any) -> None:
        """Learn whose engine scales.

        Raises:
            ConfigurationError: float16 on a CPU.
        """
        super().connect(strategy)
        self._strategy = strategy

    def state_dict(self) -> dict[str, Any]:
        """The loss scale of the first engine, and for how many steps it has held."""
        scaler = self._scaler_of_engine()
        if scaler is None or not scaler.dynamic:
            return {}
        return {
            "scale": float(scaler.cur_scale),
            "growth_factor": float(scaler.scale_factor),
            "backoff_factor": 1.0 / scaler.scale_factor,
            "growth_interval": scaler.scale_window,
            "_growth_tracker": scaler.cur_iter - scaler.last_overflow_iter - 1,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the loss scale back; one that the user has fixed stays."""
        scaler = self._scaler_of_engine()
        if state and scaler is not None and scaler.dynamic:
            scaler.cur_scale = state["scale"]
            scaler.last_overflow_iter = scaler.cur_iter - int(state["_growth_tracker"]) - 1

    def _scaler_of_engine(self) -> Any:
        engines = self._strategy.engines if self._strategy is not None else []
        return engines[0].zero.loss_scaler if engines else None
