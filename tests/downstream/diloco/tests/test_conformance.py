"""core-diloco against the conformance kit: the suites that `core check` runs."""

from core_diloco.conformance import TestDiloco, TestOuterStepOfThePaper

__all__ = ["TestDiloco", "TestOuterStepOfThePaper"]
