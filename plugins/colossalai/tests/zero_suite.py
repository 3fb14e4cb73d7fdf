"""The suite of `low_level_zero` on a double for its accelerator."""

import torch

from core import Capability
from core_colossalai import conformance
from core_testing import StrategyConformance

assert conformance.TestColossalAI  # Colossal-AI is imported there, once for all ranks


class ZeroConformance(StrategyConformance):
    """In float32, which is rounded otherwise where gradients are added in another order: masters have no float64."""

    ground = "simulated"
    dtype = torch.float32
    tolerance = 2e-6
    precisions = ("32-true", "bf16-mixed")
    timeout_s = 120
    expected_capabilities = (
        Capability.COLLECTIVES
        | Capability.JOINT_SETUP
        | Capability.OWNS_GRADIENTS
        | Capability.MANUAL_OPTIMIZATION
        | Capability.INFERENCE_MODE
        | Capability.BIT_EXACT_RESUME
        | Capability.WEIGHTED_LOSSES
    )
