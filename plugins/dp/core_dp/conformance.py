"""The conformance suites of core-dp. Imported by `core check` and the tests only: it needs
pytest.
"""

from core import Capability
from core_testing import ONE_PROCESS, StrategyConformance, StrategySmoke


class TestDP(StrategyConformance):
    """One process, which replicates modules on its GPUs; a CPU has none."""

    alias = "dp"
    accelerator = "cuda"
    num_processes = 1
    expected_capabilities = ONE_PROCESS & ~(
        Capability.MANUAL_OPTIMIZATION | Capability.BIT_EXACT_RESUME | Capability.WEIGHTED_LOSSES
    )


class TestDDP2(StrategySmoke):
    """The same on every node, and gradients averaged between nodes; here one node."""

    alias = "ddp2"
    accelerator = "cuda"
    num_processes = 1
