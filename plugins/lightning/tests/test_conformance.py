"""core-lightning against the conformance kit."""

from core_lightning.conformance import TestLightningFile

__all__ = ["TestLightningFile"]
