"""Suites of which pytest collects a part; `test_left_out.py` looks which."""

import pytest

from core_testing import ONE_PROCESS, StrategyConformance


class TestPinned(StrategyConformance):
    alias, num_processes, expected_capabilities = "single_device", 1, ONE_PROCESS


class TestOpen(StrategyConformance):
    alias, num_processes = "single_device", 1


class TestElsewhere(StrategyConformance):
    alias, accelerator = "single_device", "mps"


class TestSimulated(TestElsewhere):
    @pytest.fixture(autouse=True)
    def device(self):
        """May bring one."""
