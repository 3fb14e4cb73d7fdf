"""core-xla against the conformance kit, as any third party's plugin."""

import pytest

from core_xla import conformance

globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})

for _suite in (
    conformance.TestXLADebug,
    conformance.TestTPUSpawn,
    conformance.TestTPUSpawnDebug,
    conformance.TestSingleTPU,
    conformance.TestSingleDeviceXLA,
):
    pytest.mark.slow(_suite)
