"""core-hivemind against the conformance kit, as any third party's plugin."""

from core_hivemind import conformance

globals().update(
    {name: suite for name, suite in vars(conformance).items() if name.startswith("Test")}
)
