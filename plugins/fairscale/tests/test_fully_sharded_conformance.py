"""The conformance suite of `fsdp_fairscale`, over a test double for CUDA's streams: see
`streams_double.py`.
"""

import pytest
import streams_double

from core_fairscale import conformance

streams_double.register()
pytestmark = pytest.mark.slow


class TestOnADouble(conformance.TestFullyShardedFairScale):
    """One unit."""

    alias = "fsdp_on_a_double"
    accelerator = "cpu"
    ground = "simulated"
