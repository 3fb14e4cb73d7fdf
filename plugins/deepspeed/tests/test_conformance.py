"""Every stage of ZeRO passes the kit, in float32: DeepSpeed's masters have no float64."""

import torch

from core import Capability
from core.testing import StrategyConformance

CAPABILITIES = (
    Capability.COLLECTIVES
    | Capability.JOINT_SETUP
    | Capability.OWNS_CLIPPING
    | Capability.SHARDED_STATE
    | Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
)


class ZeroConformance(StrategyConformance):
    """What the stages have in common. float32 rounds otherwise where gradients are added in another order."""

    dtype = torch.float32
    tolerance = 2e-6
    precisions = ("32-true", "bf16-mixed", "bf16-true")
    heavy_modules = ("deepspeed",)
    expected_capabilities = CAPABILITIES
    timeout_s = 120


class TestStage1(ZeroConformance):
    alias = "deepspeed_stage_1"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


class TestStage2(ZeroConformance):
    alias = "deepspeed"


class TestStage3(ZeroConformance):
    """Small parameters stay gathered by default; here each is cut."""

    alias = "deepspeed_stage_3"
    options = {"config": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}}
