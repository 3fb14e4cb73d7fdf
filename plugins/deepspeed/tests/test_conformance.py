"""Every stage passes the kit.

Offloaded and in bf16 too, which takes longer: `tox run -e deepspeed`. In float16 as well where the CPU has it;
elsewhere by hand (`-k Float16`), where DeepSpeed is told that this CPU has it.
"""

import pytest
import torch

from core import Capability
from core.precision import MixedPrecision
from core_deepspeed.conformance import (
    CAPABILITIES,
    CUT,
    CUT_CAPABILITIES,
    TestFolderReader,
    TestNative,
    TestStage1,
    TestStage1Offload,
    TestStage2,
    TestStage2ByItsNumber,
    TestStage2Offload,
    TestStage3,
    TestStage3Offload,
    TestUniversal,
    ZeroConformance,
)
from core_deepspeed.precision import EngineScaledMixedPrecision
from support.short_suites import in_short

__all__ = [
    "TestFolderReader",
    "TestNative",
    "TestStage1",
    "TestStage2",
    "TestStage2ByItsNumber",
    "TestStage3",
    "TestUniversal",
]

# One optimizer of DeepSpeed makes both; it has its whole suite where it offloads, and test_equality.py trains without.
pytest.mark.exhaustive(TestStage1)
pytest.mark.exhaustive(TestStage2)
TestStage1InShort, TestStage2InShort = in_short(TestStage1), in_short(TestStage2)

pytest.mark.slow(TestStage2Offload)
# What is offloaded is so in this stage too, and test_examples.py trains with parameters offloaded beside it.
for _suite in (TestStage1Offload, TestStage3Offload):
    pytest.mark.exhaustive(_suite)
    globals()[f"{_suite.__name__}InShort"] = pytest.mark.slow(in_short(_suite))


@pytest.mark.exhaustive
class TestStage0(ZeroConformance):
    alias = "deepspeed"
    options = {"stage": 0}
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


TestStage0InShort = in_short(TestStage0)
"""Nothing is in parts, as in `TestStage1` gradients and parameters aren't."""


class Bf16Conformance(ZeroConformance):
    """Compared with float32 on one device, as far as eight bits allow. Running statistics are in 16 bits too."""

    tolerance = 5e-2
    precisions = ()
    options = {"config": {"data_types": {"buffer_dtype": "bf16"}}}

    def make(self, **options):
        return super().make(precision_plugin=MixedPrecision(torch.bfloat16), **options)


# `TestStage3` trains in bf16 too, as test_strategy.py does in every stage, and test_portability.py has the checkpoints.
@pytest.mark.exhaustive
class TestStage0Bf16(Bf16Conformance):
    alias = "deepspeed"
    options = {"stage": 0, **Bf16Conformance.options}
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


@pytest.mark.exhaustive
class TestStage1Bf16(Bf16Conformance):
    alias = "deepspeed_stage_1"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


@pytest.mark.exhaustive
class TestStage2Bf16(Bf16Conformance):
    alias = "deepspeed_stage_2"


TestStage2Bf16InShort = pytest.mark.slow(in_short(TestStage2Bf16))


@pytest.mark.exhaustive
class TestStage3Bf16(Bf16Conformance):
    alias = "deepspeed_stage_3"
    expected_capabilities = CUT_CAPABILITIES
    options = {"config": {**CUT, **Bf16Conformance.options["config"]}}


TestStage3Bf16InShort = pytest.mark.slow(in_short(TestStage3Bf16))


@pytest.mark.usefixtures("real_float16")
class Float16Conformance(Bf16Conformance):
    """Compared with float32 on one device, from a scale that nothing overflows."""

    options = {"config": {"data_types": {"buffer_dtype": "fp16"}}}

    def make(self, **options):
        return ZeroConformance.make(
            self, precision_plugin=EngineScaledMixedPrecision(), initial_scale_power=8, **options
        )


@pytest.mark.slow
class TestStage1Float16(Float16Conformance):
    alias = "deepspeed_stage_1"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


@pytest.mark.slow
class TestStage2Float16(Float16Conformance):
    alias = "deepspeed_stage_2"


@pytest.mark.slow
class TestStage3Float16(Float16Conformance):
    alias = "deepspeed_stage_3"
    expected_capabilities = CUT_CAPABILITIES
    options = {"config": {**CUT, **Float16Conformance.options["config"]}}
