"""core-hpu against the conformance kit: skipped here, but where there are Gaudi devices. See
`test_simulated.py`.
"""

from core_hpu import conformance

globals().update(
    {name: suite for name, suite in vars(conformance).items() if name.startswith("Test")}
)
