"""core-colossalai against the conformance kit, as any third party's plugin."""

import pytest

from core_colossalai import conformance

pytestmark = pytest.mark.slow
globals().update(
    {name: suite for name, suite in vars(conformance).items() if name.startswith("Test")}
)
