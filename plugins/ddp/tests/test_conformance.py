"""core-ddp against the conformance kit, as any third party's plugin."""

import pytest

from core_ddp import conformance
from support.short_suites import in_short

# `TestDDP` is the whole suite, and test_strategy.py trains with parameters that are unused.
pytest.mark.exhaustive(conformance.TestUnusedParameters)
TestUnusedParametersInShort = pytest.mark.slow(in_short(conformance.TestUnusedParameters))
for _slow in ("TestPostLocalSGD", "TestPowerSGD", "TestHalfGradients"):
    pytest.mark.slow(getattr(conformance, _slow))
for _name, _suite in vars(conformance).items():
    # How a rank is started and what is done about unused parameters are independent of each other.
    if "_find_unused_parameters" in _name and _name != "Test_ddp_find_unused_parameters_true":
        pytest.mark.slow(_suite)
globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})

pytestmark = pytest.mark.numbers
