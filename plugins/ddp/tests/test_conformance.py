"""core-ddp against the conformance kit, as any third party's plugin."""

import pytest

from core_ddp import conformance

pytest.mark.slow(conformance.TestUnusedParameters)
globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})
