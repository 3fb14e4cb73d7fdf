"""core-ddp against the conformance kit, as any third party's plugin."""

import pytest

from core_ddp import conformance

for _slow in ("TestUnusedParameters", "TestPostLocalSGD", "TestPowerSGD", "TestHalfGradients"):
    pytest.mark.slow(getattr(conformance, _slow))
globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})
