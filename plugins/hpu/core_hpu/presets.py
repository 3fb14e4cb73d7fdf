"""Strategies that need another package besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import ConfigurationError

if TYPE_CHECKING:
    from core.strategies import Strategy


def hpu_deepspeed(**options: Any) -> Strategy:
    """DeepSpeed's ZeRO on Gaudi devices, over HCCL: a `core_hpu.deepspeed.HPUDeepSpeedStrategy`. Not run on one yet.

    Args:
        options: those of `core_deepspeed.DeepSpeedStrategy`.

    Raises:
        ConfigurationError: core-deepspeed isn't installed.
    """
    try:
        from core_hpu.deepspeed import HPUDeepSpeedStrategy
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "strategy='hpu_deepspeed' is core-deepspeed on Gaudi devices, and core-deepspeed can't be imported: "
            f"{error}. Install core-hpu[deepspeed]."
        ) from error
    return HPUDeepSpeedStrategy(**options)
