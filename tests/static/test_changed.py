"""The tests that a change reaches."""

import pytest

from changed import reached_tests


@pytest.mark.parametrize(
    ("path", "some", "not_these"),
    [
        # A plugin's own tests, and those that name one of its aliases.
        (
            "plugins/ddp/core_ddp/strategy.py",
            {"plugins/ddp/tests", "plugins/training/tests/loops/test_windows.py"},
            "plugins/mlflow/",
        ),
        ("plugins/hpu/core_hpu/strategy.py", {"plugins/hpu/tests"}, "plugins/training/"),
        # Through the lazy names of public packages.
        (
            "plugins/training/core_training/callbacks/timer.py",
            {"plugins/training/tests"},
            "tests/fabric/",
        ),
        ("core/cli/doctor.py", {"tests/cli/test_doctor.py"}, "plugins/"),
        (
            "core/contract/strategy.py",
            {"plugins/fsdp/tests/test_conformance.py", "tests/fabric/test_fabric.py"},
            None,
        ),
        (
            "tests/support/tiny.py",
            {"plugins/training/tests/callbacks/test_early_stopping.py"},
            "plugins/ddp/",
        ),
        ("docs/data.md", {"tests/examples"}, "plugins/"),
        ("plugins/plan/core_plan/py.typed", {"plugins/plan/tests"}, "tests/"),
        ("constraints.txt", {"tests", "plugins"}, None),
    ],
)
def test_a_change_reaches_what_imports_it(path, some, not_these):
    reached = {*reached_tests([path])}
    assert some <= reached
    assert not_these is None or not [test for test in reached if test.startswith(not_these)]
