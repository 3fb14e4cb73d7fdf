"""The precisions, with Lightning's arguments."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch.amp import GradScaler

from core import ConfigurationError
from core.accelerators import CPUAccelerator
from core.precision import MixedPrecision as CoreMixedPrecision
from core.precision import Precision, UniformPrecision
from core_lightning.decisions.differences import note

_DTYPES = {"16": torch.float16, "bf16": torch.bfloat16}


class MixedPrecision(CoreMixedPrecision):
    """See `core.precision.MixedPrecision`. The strategy's kind of device counts, whatever `device`
    says.
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
    """See `core.precision.UniformPrecision`."""

    def __init__(self, precision: Literal["bf16-true", "16-true"] = "16-true") -> None:
        super().__init__(_dtype("HalfPrecision", precision, "true"))
        self.precision = precision


class DoublePrecision(UniformPrecision):
    """float64 for everything; see `core.precision.UniformPrecision`."""

    precision = "64-true"

    def __init__(self) -> None:
        super().__init__(torch.float64)


def with_lightnings_class(precision: Any) -> None:
    """Main process. Give a precision that was chosen by its name the class, and `precision`, that
    programs ask for.
    """
    if type(precision) is CoreMixedPrecision:
        precision.__class__ = MixedPrecision
    elif type(precision) is UniformPrecision:
        precision.__class__ = DoublePrecision if precision.dtype == torch.float64 else HalfPrecision
    vars(precision).setdefault("precision", getattr(precision, "name", "32-true"))


def keep_no_casts(precision: Precision) -> None:
    """Main process. Make a mixed precision cast a weight at each use, as Lightning's Trainer does.

    A weight that a step uses several times then adds up its gradients in float32; those of a cast
    that is kept add up in 16 bits. Lightning's Fabric keeps casts, and so do strategies with a
    mixed precision of their own.
    """
    if isinstance(precision, CoreMixedPrecision) and type(precision) in (
        CoreMixedPrecision,
        MixedPrecision,
    ):
        precision.forward_context = partial(_without_cache, precision)  # type: ignore[method-assign]


def _without_cache(precision: CoreMixedPrecision, device_type: str) -> torch.autocast:
    type(precision).forward_context(precision, device_type)  # its errors are core's
    return torch.autocast(device_type, precision.dtype, cache_enabled=False)


def _dtype(name: str, precision: str, kind: str) -> torch.dtype:
    bits, _, ending = str(precision).partition("-")
    if ending != kind or bits not in _DTYPES:
        raise ConfigurationError(f"{name}({precision!r}): expected '16-{kind}' or 'bf16-{kind}'.")
    return _DTYPES[bits]


_HALF = (16, "16", "16-mixed")
"""The names of float16 with float32 weights."""


def replace_half_on_cpu(options: dict[str, Any]) -> None:
    """Replace float16 among the arguments of a Trainer or Fabric that lead to a CPU; warn at the
    user's line.
    """
    if options.get("precision") in _HALF and _is_on_cpu(options.get("accelerator")):
        note(
            "precision='16-mixed' is bf16-mixed on a CPU, which has no float16 to gain from.",
            stacklevel=3,
        )
        options["precision"] = "bf16-mixed"


def _is_on_cpu(accelerator: Any) -> bool:
    """True if this choice of an accelerator is a CPU, or leads to it."""
    if accelerator in (None, "auto"):
        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return accelerator == "cpu" or isinstance(accelerator, CPUAccelerator)
