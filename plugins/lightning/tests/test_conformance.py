"""core-lightning against the conformance kit."""

from core_lightning.conformance import TestLightningFile, TestLightningReader

__all__ = ["TestLightningFile", "TestLightningReader"]
