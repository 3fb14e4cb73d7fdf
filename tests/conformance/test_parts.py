"""The built-in parts beside strategies."""

import pytest

from core_testing import builtin

SUITES = {name: suite for name, suite in vars(builtin).items() if name.startswith("Test") and suite.kind != "strategy"}
globals().update(SUITES)

pytest.mark.gpu(builtin.TestCUDA)
for _suite in (builtin.TestSubprocess, builtin.TestSpawn, builtin.TestForkserver, builtin.TestAsync):
    pytest.mark.slow(_suite)
