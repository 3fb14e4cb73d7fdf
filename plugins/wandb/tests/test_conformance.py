"""core-wandb against the conformance kit."""

from core_wandb.conformance import TestWandb

__all__ = ["TestWandb"]
