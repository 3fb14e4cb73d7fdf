"""Losses that say what they weigh: ranks of one tensor-parallel group count once."""

import pytest

from core_testing.strategy.weights import WeightTests

pytestmark = [pytest.mark.numbers, pytest.mark.slow]


class TestGroupsOfTwo(WeightTests):
    alias = "model_parallel"
    options = {"data_parallel_size": 2, "tensor_parallel_size": 2}
    num_processes = 4
    data_parallel_size = 2
    tolerance = 1e-12
