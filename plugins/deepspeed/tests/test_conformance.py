"""Every stage passes the kit.

Offloaded and in bf16 too, which takes longer: `tox run -e deepspeed`. In float16 as well where the
CPU has it; elsewhere by hand (`-k Float16`), where DeepSpeed is told that this CPU has it.
"""

import pytest
import torch

from core import Capability
from core.precision import MixedPrecision
from core_deepspeed import conformance
from core_deepspeed.conformance import CAPABILITIES, CUT, ZeroConformance
from core_deepspeed.precision import EngineScaledMixedPrecision
from core_testing import StrategySmoke
from core_testing.strategy.script import ScriptTests
from support.short_suites import in_short


class WithScript(ScriptTests, StrategySmoke):
    """A script would have to write down the options of `TestStage3`. test_examples.py starts one in
    new interpreters.
    """

    new_interpreter = False


# Suites that are imported by their names would be run here.
TestFolderReader, TestNative = conformance.TestFolderReader, conformance.TestNative
TestUniversal = conformance.TestUniversal
TestStage2ByItsNumber = conformance.TestStage2ByItsNumber
# All stages are one strategy, whose whole suite is that of `TestStage3`; test_strategy.py trains in
# each. What is offloaded is so in the other stages too; test_examples.py trains with parameters
# offloaded beside.
TestStage3 = conformance.TestStage3
TestStage1InShort = in_short(conformance.TestStage1)
TestStage2InShort = in_short(conformance.TestStage2, WithScript)
TestStage2Offload = pytest.mark.exhaustive(conformance.TestStage2Offload)
TestStage1OffloadInShort, TestStage2OffloadInShort, TestStage3OffloadInShort = (
    pytest.mark.slow(in_short(suite))
    for suite in (
        conformance.TestStage1Offload,
        TestStage2Offload,
        conformance.TestStage3Offload,
    )
)


class Stage0(ZeroConformance):
    """Nothing is in parts, as in `TestStage1` gradients and parameters aren't."""

    alias = "deepspeed"
    options = {"stage": 0}
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


class Bf16(ZeroConformance):
    """Compared with float32 on one device, as far as eight bits allow. Running statistics are in 16
    bits too.

    `TestStage3` trains in bf16 too, as test_strategy.py does in every stage, and
    test_portability.py has the checkpoints.
    """

    tolerance = 5e-2
    precisions = ()
    alias = "deepspeed_stage_3"
    options = {"config": {**CUT, "data_types": {"buffer_dtype": "bf16"}}}

    def make(self, **options):
        return ZeroConformance.make(
            self, precision_plugin=MixedPrecision(torch.bfloat16), **options
        )


class Float16(Bf16):
    """From a scale that nothing overflows."""

    options = {"config": {**CUT, "data_types": {"buffer_dtype": "fp16"}}}

    def make(self, **options):
        return ZeroConformance.make(
            self, precision_plugin=EngineScaledMixedPrecision(), initial_scale_power=8, **options
        )


TestStage0InShort, TestBf16 = in_short(Stage0), pytest.mark.slow(in_short(Bf16))
TestFloat16 = pytest.mark.slow(pytest.mark.usefixtures("real_float16")(in_short(Float16)))
