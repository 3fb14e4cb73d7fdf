"""The conformance suites of core-fairscale. Imported by `core check` and the tests only: it needs
pytest.
"""

import torch

from core import Capability
from core_testing import ONE_PROCESS, PARALLEL, StrategyConformance, StrategySmoke

_PRESETS = (
    "ddp_sharded_spawn",
    "ddp_sharded_find_unused_parameters_false",
    "ddp_sharded_spawn_find_unused_parameters_false",
    "ddp_sharded_spawn_find_unused_parameters_true",
)


class TestDDPSharded(StrategyConformance):
    """Two processes train as one device does, and each keeps a part of the optimizer."""

    alias = "ddp_sharded"
    expected_capabilities = (
        PARALLEL & ~Capability.REPLICATED_PARAMETERS
        | Capability.JOINT_SETUP
        | Capability.OWNS_GRADIENTS
        | Capability.SHARDED_STATE
    )


class TestShardedUnusedParameters(StrategyConformance):
    """The preset that really differs: a gradient may be missing on some ranks."""

    alias = "ddp_sharded_find_unused_parameters_true"
    new_interpreter = False
    expected_capabilities = TestDDPSharded.expected_capabilities


class TestFullyShardedFairScale(StrategyConformance):
    """FairScale's own FSDP, in float32, which it asks for, so that sums in another order are
    rounded otherwise.
    """

    alias = "fsdp_fairscale"
    accelerator = "cuda"
    dtype = torch.float32
    tolerance = 2e-6
    precisions = ("32-true", "bf16-mixed")
    expected_capabilities = (
        Capability.COLLECTIVES
        | Capability.OWNS_GRADIENTS
        | ONE_PROCESS & ~(Capability.MANUAL_OPTIMIZATION | Capability.INFERENCE_MODE)
    )
    known_failures = {
        "test_training_equals_one_device[matrices_apart]": "its parameters are vectors: a rank has "
        "no matrices"
    }


for _alias in _PRESETS:
    globals()[f"Test_{_alias}"] = type(
        f"Test_{_alias}", (StrategySmoke,), {"alias": _alias, "__module__": __name__}
    )
