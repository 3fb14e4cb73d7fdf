"""The precisions, with Lightning's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from core import ConfigurationError
from core.precision import MixedPrecision as CoreMixedPrecision
from core.precision import UniformPrecision

if TYPE_CHECKING:
    from torch.amp import GradScaler

_DTYPES = {"16": torch.float16, "bf16": torch.bfloat16}


class MixedPrecision(CoreMixedPrecision):
    """See `core.precision.MixedPrecision`.

    Args:
        precision: `"16-mixed"` or `"bf16-mixed"`.
        device: the kind of device; the strategy's counts.
        scaler: scales the loss.
    """

    def __init__(
        self,
        precision: Literal["16-mixed", "bf16-mixed"],
        device: str | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        super().__init__(_dtype("MixedPrecision", precision, "mixed"), scaler=scaler)
        self.precision, self.device = precision, device


class HalfPrecision(UniformPrecision):
    """See `core.precision.UniformPrecision`.

    Args:
        precision: `"16-true"` or `"bf16-true"`.
    """

    def __init__(self, precision: Literal["bf16-true", "16-true"] = "16-true") -> None:
        super().__init__(_dtype("HalfPrecision", precision, "true"))
        self.precision = precision


class DoublePrecision(UniformPrecision):
    """float64 for everything; see `core.precision.UniformPrecision`."""

    precision = "64-true"

    def __init__(self) -> None:
        super().__init__(torch.float64)


def _dtype(name: str, precision: str, kind: str) -> torch.dtype:
    bits, _, ending = str(precision).partition("-")
    if ending != kind or bits not in _DTYPES:
        raise ConfigurationError(f"{name}({precision!r}): expected '16-{kind}' or 'bf16-{kind}'.")
    return _DTYPES[bits]
