"""`16-mixed` and `bf16-mixed` where Colossal-AI converts the model, and scales the loss."""

from __future__ import annotations

from typing import Any

import torch

from core import ConfigurationError, NumberFormats, Precision

NAMES = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
"""Names of core's for Colossal-AI's."""

_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class BoostedPrecision(Precision):
    """The model in 16 bits, inputs too, and masters of its parameters in float32: all done by
    Colossal-AI.

    The scale is saved as torch's GradScaler saves it, so that it goes on under other strategies.
    """

    _strategy: Any = None

    def __init__(self, name: str) -> None:
        """Wrap `16-mixed` or `bf16-mixed`."""
        self.name = name
        dtype = _DTYPES[name]
        self.formats = NumberFormats(
            torch.float32, dtype, dtype, dtype, scales_loss=dtype == torch.float16
        )

    def connect(self, strategy: Any) -> None:
        """Create the precision of the strategy whose engine scales."""
        self._strategy = strategy

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, and for how many steps it has held; empty where none is."""
        if (scaler := self._scaler()) is None:
            return {}
        return {
            "scale": float(scaler.scale),
            "growth_factor": float(scaler._growth_factor),
            "backoff_factor": float(scaler._backoff_factor),
            "growth_interval": scaler._growth_interval,
            "_growth_tracker": scaler._growth_step,
            "hysteresis_step": scaler._hysteresis_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale."""
        if state and (scaler := self._scaler()) is not None:
            scaler._scale.fill_(state["scale"])
            scaler._growth_step = int(state["_growth_tracker"])
            scaler._hysteresis_step = state.get("hysteresis_step", 0)

    def _scaler(self) -> Any:
        engine = getattr(self._strategy, "engine", None)
        mixin = getattr(getattr(engine, "boosted", None), "mixed_precision_mixin", None)
        return getattr(mixin, "grad_scaler", None)


def choose(name: str) -> Precision | None:
    """The precision of a plugin that converts the model itself; None for `32-true`, which is core's
    own.

    Raises:
        ConfigurationError: Colossal-AI doesn't have it.
    """
    if name == "32-true":
        return None
    if name not in _DTYPES:
        known = ", ".join(map(repr, NAMES.values()))
        raise ConfigurationError(
            f"precision={name!r}: Colossal-AI's ZeRO, Gemini and hybrid plugins have {known}."
        )
    return BoostedPrecision(name)
