"""The conformance suites of core-deepspeed, in float32: DeepSpeed's masters have no float64.

Imported by `core check` and the tests only: it needs pytest.
"""

import warnings
from importlib.util import find_spec

import pytest
import torch

from core import Capability
from core_testing import (
    CheckpointIOConformance,
    CheckpointReaderConformance,
    StrategyConformance,
    StrategySmoke,
)

if find_spec("deepspeed"):
    # Once here, and not in each of the ranks that are forked from this process: torch's compiler is
    # behind it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed.runtime.zero.muon.muon_optimizer
        import deepspeed.runtime.zero.stage3  # noqa: F401

CAPABILITIES = (
    Capability.COLLECTIVES
    | Capability.JOINT_SETUP
    | Capability.OWNS_CLIPPING
    | Capability.OWNS_GRADIENTS
    | Capability.SHARDED_STATE
    | Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
    | Capability.INFERENCE_MODE
    | Capability.WEIGHTED_LOSSES
)
CUT_CAPABILITIES = CAPABILITIES & ~Capability.INFERENCE_MODE
# Small parameters stay gathered by default; so each is cut.
CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


class ZeroConformance(StrategyConformance):
    """The base of the stages' suites. float32 rounds otherwise where gradients are added in another
    order.
    """

    dtype = torch.float32
    tolerance = 2e-6
    precisions = ("32-true", "bf16-mixed", "bf16-true")
    heavy_modules = ("deepspeed",)
    expected_capabilities = CAPABILITIES
    new_interpreter = False
    timeout_s = 120


class TestStage1(ZeroConformance):
    """Optimizer states in parts."""

    alias = "deepspeed_stage_1"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


class TestStage2(ZeroConformance):
    """Gradients in parts too."""

    alias = "deepspeed"
    new_interpreter = True


class TestStage3(ZeroConformance):
    """Parameters in parts too."""

    alias = "deepspeed_stage_3"
    expected_capabilities = CUT_CAPABILITIES
    options = {"config": CUT}


class TestStage1Offload(ZeroConformance):
    """Optimizer states in the host's memory."""

    alias = "deepspeed_stage_1_offload"
    expected_capabilities = CAPABILITIES | Capability.NO_SYNC


class TestStage2Offload(ZeroConformance):
    """The same, and gradients in parts."""

    alias = "deepspeed_stage_2_offload"


class TestStage3Offload(ZeroConformance):
    """The same, and parameters in parts."""

    alias = "deepspeed_stage_3_offload"
    expected_capabilities = CUT_CAPABILITIES
    options = {"config": CUT}


class TestStage2ByItsNumber(StrategySmoke):
    """Another name of the stage that `deepspeed` is."""

    alias = "deepspeed_stage_2"
    dtype = torch.float32
    tolerance = 2e-6
    heavy_modules = ("deepspeed",)


@pytest.mark.skip(reason="it needs nvme_path and libaio; tests marked `nvme` are for it")
class TestStage3OffloadNvme(StrategySmoke):
    """Optimizer states and parameters on a disk."""

    alias = "deepspeed_stage_3_offload_nvme"


class _MadeByDeepSpeed(CheckpointIOConformance):
    """The suite of layouts that the core reads and doesn't write: tests that save a state are known
    failures.
    """

    known_failures = dict.fromkeys(
        CheckpointIOConformance.tests_that_save,
        "DeepSpeed writes it, and a state can't be saved in it",
    )


class TestNative(_MadeByDeepSpeed):
    """The engine's own layout."""

    alias = "deepspeed_native"


class TestUniversal(_MadeByDeepSpeed):
    """The layout that DeepSpeed makes of the engine's own."""

    alias = "deepspeed_universal"


class TestFolderReader(CheckpointReaderConformance):
    """Recognizes folders only: the tests that need a file are skipped."""

    alias = "deepspeed"
