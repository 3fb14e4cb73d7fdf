"""Every stage of ZeRO passes the kit, in float32: DeepSpeed's masters have no float64.

Offloaded and in bf16 too, which takes longer: `tox run -e deepspeed -- -m slow plugins/deepspeed/tests`.
"""

import pytest
import torch

from core import Capability
from core.precision import MixedPrecision
from core.testing import StrategyConformance

CAPABILITIES = (
    Capability.COLLECTIVES
    | Capability.JOINT_SETUP
    | Capability.OWNS_CLIPPING
    | Capability.SHARDED_STATE
    | Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
)
# Small parameters stay gathered by default; so each is cut.
CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


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
    alias = "deepspeed_stage_3"
    options = {"config": CUT}


@pytest.mark.slow
class TestStage1Offload(ZeroConformance):
    alias = "deepspeed_stage_1_offload"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


@pytest.mark.slow
class TestStage2Offload(ZeroConformance):
    alias = "deepspeed_stage_2_offload"


@pytest.mark.slow
class TestStage3Offload(ZeroConformance):
    alias = "deepspeed_stage_3_offload"
    options = {"config": CUT}


class Bf16Conformance(ZeroConformance):
    """Compared with float32 on one device, as far as eight bits allow."""

    tolerance = 5e-2
    precisions = ()

    def make(self, **options):
        return super().make(precision_plugin=MixedPrecision(torch.bfloat16), **options)


@pytest.mark.slow
class TestStage1Bf16(Bf16Conformance):
    alias = "deepspeed_stage_1"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


@pytest.mark.slow
class TestStage2Bf16(Bf16Conformance):
    alias = "deepspeed_stage_2"


@pytest.mark.slow
class TestStage3Bf16(Bf16Conformance):
    alias = "deepspeed_stage_3"
    options = {"config": CUT}
