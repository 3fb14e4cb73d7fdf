"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel import conformance

globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})

pytestmark = [pytest.mark.numbers, pytest.mark.slow]
