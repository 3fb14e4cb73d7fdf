"""DeepSpeed on Gaudi devices, with the vendor's build of it. Needs core-deepspeed."""

from __future__ import annotations

from core_deepspeed import DeepSpeedStrategy
from core_hpu.collectives import HCCLStrategy
from core_hpu.strategy import HPUStrategy

__all__ = ["HPUDeepSpeedStrategy"]


class HPUDeepSpeedStrategy(HPUStrategy, HCCLStrategy, DeepSpeedStrategy):
    """DeepSpeed's ZeRO on Gaudi devices, over HCCL. Has not been run on one yet.

    Its options are those of `core_deepspeed.DeepSpeedStrategy`. DeepSpeed has to be the vendor's
    build:
    https://docs.habana.ai/en/latest/PyTorch/DeepSpeed/Getting_Started_with_DeepSpeed/Getting_Started_with_DeepSpeed.html
    """
