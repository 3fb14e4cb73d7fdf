"""What a strategy must prove."""

from core.testing.strategy.suite import StrategyConformance, StrategySmoke

__all__ = ["StrategyConformance", "StrategySmoke"]
