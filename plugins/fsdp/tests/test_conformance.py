"""core-fsdp against the conformance kit, as any third party's plugin."""

from core import Capability
from core.testing import StrategyConformance

CAPABILITIES = (
    Capability.COLLECTIVES
    | Capability.SHARDED_STATE
    | Capability.NO_SYNC
    | Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
    | Capability.SEVERAL_OPTIMIZERS
    | Capability.CLIP_BY_VALUE
    | Capability.BIT_EXACT_RESUME
)
STAYS = "sharded modules need their group as long as they live, and it stays that long"


class TestFSDP(StrategyConformance):
    alias = "fsdp"
    expected_capabilities = CAPABILITIES
    known_failures = {"test_teardown_leaves_nothing[process_group]": STAYS}


class TestModelParallel(StrategyConformance):
    """Two ranks of one tensor-parallel group, which have their data in common."""

    alias = "model_parallel"
    num_shares = 1
    expected_capabilities = CAPABILITIES
    known_failures = {
        "test_teardown_leaves_nothing[process_group]": STAYS,
    }
