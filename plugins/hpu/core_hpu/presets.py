"""Strategies that need another package besides."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from core import ConfigurationError

if TYPE_CHECKING:
    from core.strategies import Strategy


_NEEDED = "0.19"  # by core-deepspeed; the vendor's build is 0.14.4 up to Gaudi software 1.23


def _refuse_vendors_build() -> None:
    try:
        here = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return
    if Version(here) < Version(_NEEDED):
        raise ConfigurationError(
            "strategy='hpu_deepspeed' is core-deepspeed on Gaudi devices, which needs DeepSpeed "
            f"{_NEEDED}, and {here} is here. The vendor's own build is a fork of 0.14.4 in all "
            "releases up to Gaudi software 1.23, so that no release serves both. Use "
            "strategy='hpu_parallel'."
        )


def hpu_deepspeed(**options: Any) -> Strategy:
    """DeepSpeed's ZeRO on Gaudi devices, over HCCL: a `core_hpu.deepspeed.HPUDeepSpeedStrategy`.
    Not run on one yet.

    Args:
        options: those of `core_deepspeed.DeepSpeedStrategy`.

    Raises:
        ConfigurationError: core-deepspeed isn't installed, or the vendor's DeepSpeed is, which is
            too old for it.
    """
    _refuse_vendors_build()
    try:
        from core_hpu.deepspeed import HPUDeepSpeedStrategy
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "strategy='hpu_deepspeed' is core-deepspeed on Gaudi devices, and core-deepspeed can't "
            f"be imported: {error}. Install core-hpu[deepspeed]."
        ) from error
    return HPUDeepSpeedStrategy(**options)
