"""core-xla against the conformance kit, as any third party's plugin."""

import pytest

from core_xla import conformance

globals().update(
    {name: suite for name, suite in vars(conformance).items() if name.startswith("Test")}
)

# One device does what each of several does in `TestSPMD`. It has test_one_process.py, and the short
# suite of its other name.
for _suite in (
    conformance.TestSingleXLA,
    conformance.TestXLADebug,
    conformance.TestTPUSpawn,
    conformance.TestTPUSpawnDebug,
    conformance.TestSingleDeviceXLA,
):
    pytest.mark.slow(_suite)
