"""core-ddp against the conformance kit, as any third party's plugin."""

import pytest

from core_ddp import conformance
from core_testing import DifferingSmoke
from support.short_suites import in_short

TestDDPInShort = in_short(conformance.TestDDP)
# `TestDDP` is the whole suite, and test_strategy.py trains with parameters that are unused. Of the
# suites that may differ from one device, `TestDiloco` in tests/downstream is whole.
TestUnusedParametersInShort = pytest.mark.slow(in_short(conformance.TestUnusedParameters))
TestPostLocalSGDInShort = pytest.mark.slow(in_short(conformance.TestPostLocalSGD, DifferingSmoke))
TestDDP, TestPowerSGD, TestHalfGradients = map(
    pytest.mark.slow, (conformance.TestDDP, conformance.TestPowerSGD, conformance.TestHalfGradients)
)
# How a rank is started and what is done about unused parameters are independent of each other, and
# tests/test_installed.py has the options of every alias.
TestSpawn, TestFork = conformance.Test_ddp_spawn, conformance.Test_ddp_fork
TestNotebook = conformance.Test_ddp_notebook
TestWithoutUnused = pytest.mark.slow(conformance.Test_ddp_find_unused_parameters_false)

pytestmark = pytest.mark.numbers
