"""core-bagua against the conformance kit, as any third party's plugin."""

import pytest

from core_bagua import conformance
from core_testing import DifferingSmoke
from support.short_suites import in_short

# The whole suite of `TestGradientAllReduce` holds what these have in common with it, and that of
# `TestDiloco` in tests/downstream what may differ from one device.
globals().update(
    {name: suite for name, suite in vars(conformance).items() if name.startswith("Test")}
)
TestByteGrad, TestDecentralized = (
    in_short(suite, DifferingSmoke)
    for suite in (conformance.TestByteGrad, conformance.TestDecentralized)
)
# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
conformance.TestGradientAllReduce.new_interpreter = False

pytestmark = pytest.mark.slow
