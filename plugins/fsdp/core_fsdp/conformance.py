"""The conformance suites of core-fsdp. Imported by `core check` and the tests only: it needs
pytest.
"""

from core import Capability
from core_testing import PARALLEL, StrategyConformance, StrategySmoke

_CAPABILITIES = (
    PARALLEL & ~(Capability.REPLICATED_PARAMETERS | Capability.INFERENCE_MODE)
    | Capability.SHARDED_STATE
)
_STAYS = "sharded modules need their group as long as they live, and it stays that long"


class TestFSDP(StrategyConformance):
    """Two ranks, each with a part of every parameter."""

    alias = "fsdp"
    expected_capabilities = _CAPABILITIES
    known_failures = {"test_teardown_leaves_nothing[process_group]": _STAYS}


class TestModelParallel(StrategyConformance):
    """Two ranks of one tensor-parallel group, which have their data in common."""

    alias = "model_parallel"
    new_interpreter = False
    data_parallel_size = 1
    expected_capabilities = _CAPABILITIES
    known_failures = {"test_teardown_leaves_nothing[process_group]": _STAYS}


class TestCPUOffload(StrategySmoke):
    """The preset that keeps parameters in the host's memory."""

    alias = "fsdp_cpu_offload"
