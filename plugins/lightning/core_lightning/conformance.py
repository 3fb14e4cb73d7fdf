"""The conformance suites of core-lightning. Imported by `core check` and the tests only: it needs pytest."""

from core_testing import CheckpointIOConformance


class TestLightningFile(CheckpointIOConformance):
    """One file under Lightning's keys."""

    alias = "lightning"
