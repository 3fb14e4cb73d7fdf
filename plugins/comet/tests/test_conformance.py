"""core-comet against the conformance kit."""

from core_comet.conformance import TestComet

__all__ = ["TestComet"]
