"""The built-in parts beside strategies, each class of them once: without what says nothing of one,
or is of a GPU.
"""

import pytest
import torch

from core_testing import builtin

ONE_A_PACKAGE = (
    "test_listing_imports_neither_torch_nor_the_plugin",
    "test_import_leaves_heavy_libraries_alone",
    "test_import_changes_nothing",
)
COMPUTES = (
    "test_computes",
    "test_keeps_random_state",
    "test_reports_memory_by_units",
    "test_trains",
)
SAYS_NOTHING = {
    "TestCUDA": () if torch.cuda.is_available() else COMPUTES,
    "TestMPS": () if torch.backends.mps.is_available() else COMPUTES,
    "TestLocal": ("test_refuses_what_does_not_fit",),
    "TestSafetensors": ("test_shards_come_back",),
    "TestTorchFile": ("test_shards_come_back",),
    "TestInPlace": ("test_a_killed_rank_is_named",),
}
# those of TestSingle and TestMixedBFloat16
OF_OTHER_FORMATS = ("TestDouble", "TestHalf", "TestMixedHalf")


def alone(suite, function):
    """In this process, which these kinds leave as it is; a cluster environment gives it a world."""
    return function()


for _name, _suite in vars(builtin).items():
    if _name.startswith("Test") and _suite.kind != "strategy" and _name not in OF_OTHER_FORMATS:
        _left_out = ("test_requirement_on_core_is_bounded", *SAYS_NOTHING.get(_name, ()))
        _left_out += () if _name == "TestCPU" else ONE_A_PACKAGE
        _left_out += ("test_skips_steps_that_overflow",) if _suite.kind == "precision" else ()
        _own = {"alone": alone} if _suite.kind in ("precision", "checkpoint io", "logger") else {}
        globals()[_name] = type(_name, (_suite,), dict.fromkeys(_left_out) | _own)

pytest.mark.gpu(globals()["TestCUDA"])
for _name in ("TestSubprocess", "TestSpawn", "TestForkserver", "TestAsync"):
    pytest.mark.slow(globals()[_name])
