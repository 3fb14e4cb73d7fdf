"""core-fsdp against the conformance kit, as any third party's plugin."""

from core_fsdp.conformance import TestCPUOffload, TestFSDP, TestModelParallel

__all__ = ["TestCPUOffload", "TestFSDP", "TestModelParallel"]
