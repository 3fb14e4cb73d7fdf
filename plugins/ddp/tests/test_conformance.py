"""core-ddp against the conformance kit, as any third party's plugin."""

import pytest

from core_ddp import conformance
from core_testing import DifferingSmoke
from support.short_suites import in_short

TestDDPInShort = in_short(conformance.TestDDP)
# `TestDDP` is the whole suite, and test_strategy.py trains with parameters that are unused.
pytest.mark.exhaustive(conformance.TestUnusedParameters)
TestUnusedParametersInShort = pytest.mark.slow(in_short(conformance.TestUnusedParameters))
# Of the suites that may differ from one device, `TestDiloco` in tests/downstream is whole.
pytest.mark.exhaustive(conformance.TestPostLocalSGD)
TestPostLocalSGDInShort = pytest.mark.slow(in_short(conformance.TestPostLocalSGD, DifferingSmoke))
for _slow in ("TestDDP", "TestPowerSGD", "TestHalfGradients"):
    pytest.mark.slow(getattr(conformance, _slow))
for _name, _suite in vars(conformance).items():
    # How a rank is started and what is done about unused parameters are independent of each other, and
    # tests/test_installed.py has the options of every alias.
    if "_find_unused_parameters" in _name:
        (pytest.mark.slow if _name.startswith("Test_ddp_find") else pytest.mark.exhaustive)(_suite)
globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})

pytestmark = pytest.mark.numbers
