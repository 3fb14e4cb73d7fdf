"""The conformance suites of strategies."""

from core_testing.strategy.differing import DifferingConformance, DifferingSmoke, Differs
from core_testing.strategy.pinned import ONE_PROCESS, PARALLEL
from core_testing.strategy.suite import StrategyConformance, StrategySmoke

__all__ = [
    "ONE_PROCESS",
    "PARALLEL",
    "DifferingConformance",
    "DifferingSmoke",
    "Differs",
    "StrategyConformance",
    "StrategySmoke",
]
