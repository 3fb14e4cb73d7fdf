"""Losses that say what they weigh, on more ranks than the kit has: batches are then uneven in other
ways.
"""

import pytest

from core_testing.strategy.weights import WeightTests

pytestmark = [pytest.mark.numbers, pytest.mark.slow]


class TestThreeRanks(WeightTests):
    alias = "ddp"
    num_processes = 3
    tolerance = 1e-12
