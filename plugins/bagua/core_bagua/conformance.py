"""The conformance suites of core-bagua. Imported by `core check` and the tests only: it needs
pytest.
"""

from typing import Any

from core import Capability
from core_bagua.qadam import QAdamOptimizer
from core_testing import DifferingConformance, DifferingSmoke, Differs, StrategyConformance

_BASE = (
    Capability.COLLECTIVES
    | Capability.MANUAL_OPTIMIZATION
    | Capability.CLIP_BY_VALUE
    | Capability.INFERENCE_MODE
    | Capability.BIT_EXACT_RESUME
)
_SYNCS = Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS
_EIGHT_BITS = "gradients travel in eight bits"
_ALONE = "each rank steps by its own gradient"


def _q_adam(module: Any) -> QAdamOptimizer:
    return QAdamOptimizer(module.parameters(), lr=0.01, warmup_steps=4)


class TestGradientAllReduce(StrategyConformance):
    """Two processes train as one device does."""

    alias = "bagua"
    tolerance = 1e-12
    expected_capabilities = (
        _BASE
        | _SYNCS
        | Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.WEIGHTED_LOSSES
    )


class TestByteGrad(DifferingConformance):
    """Gradients in eight bits, with error feedback."""

    alias = "bagua"
    options = {"algorithm": "bytegrad"}
    differs = Differs(_EIGHT_BITS, within=0.02, steps_outstanding=0.02)
    expected_capabilities = _BASE | _SYNCS


class TestQAdam(DifferingSmoke):
    """Momenta in eight bits, after four steps."""

    alias = "bagua"
    options = {"algorithm": "qadam"}
    # What is held back of a small gradient's momentum is divided by a small variance. It doesn't
    # grow with the run.
    differs = Differs("momenta travel in eight bits", within=0.02, steps_outstanding=4)
    optimizer = staticmethod(_q_adam)


class TestDecentralized(DifferingConformance):
    """Weights are averaged with all ranks before each step."""

    alias = "bagua"
    options = {"algorithm": "decentralized"}
    differs = Differs(_ALONE, within=0.1, agrees_after=1)
    expected_capabilities = _BASE | Capability.OWNS_GRADIENTS


class TestShiftOne(DifferingSmoke):
    """Weights are averaged with one other rank before each step."""

    alias = "bagua"
    options = {
        "algorithm": "decentralized",
        "peer_selection_mode": "shift_one",
        "communication_interval": 2,
    }
    differs = Differs(_ALONE, within=0.2, agrees_after=2)


class TestLowPrecisionDecentralized(DifferingSmoke):
    """Differences of weights travel in eight bits on a ring."""

    alias = "bagua"
    options = {"algorithm": "low_precision_decentralized", "flatten": False}
    differs = Differs(
        "neighbors learn in eight bits how a rank has changed", within=0.2, agrees_after=24
    )


class TestAsyncModelAverage(DifferingSmoke):
    """Weights are averaged meanwhile, as often as can be."""

    alias = "bagua"
    options = {"algorithm": "async", "sync_interval_ms": 0}
    differs = Differs("an average comes when it comes", within=0.3, agrees_after=None)
