"""Every stage of ZeRO passes the kit.

Offloaded and in bf16 too, which takes longer: `tox run -e deepspeed -- -m slow plugins/deepspeed/tests`.
"""

import pytest
import torch

from core import Capability
from core.precision import MixedPrecision
from core_deepspeed.conformance import (
    CAPABILITIES,
    CUT,
    TestStage1,
    TestStage1Offload,
    TestStage2,
    TestStage2ByItsNumber,
    TestStage2Offload,
    TestStage3,
    TestStage3Offload,
    ZeroConformance,
)

__all__ = ["TestStage1", "TestStage2", "TestStage2ByItsNumber", "TestStage3"]

for _suite in (TestStage1Offload, TestStage2Offload, TestStage3Offload):
    pytest.mark.slow(_suite)


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
