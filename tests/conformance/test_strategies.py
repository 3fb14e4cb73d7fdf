"""The built-in strategies, without what is of several ranks."""

import pytest

from core_testing import builtin
from core_testing.strategy import ONE_PROCESS

pytestmark = pytest.mark.numbers


class TestSingleDevice(builtin.TestSingleDevice):
    """Its script is forked: that of core-ddp's suite starts as a user's does."""

    new_interpreter = False


for _name in dir(TestSingleDevice):
    _needed = getattr(getattr(TestSingleDevice, _name), "needs", None)
    if _needed is not None and _needed & ~ONE_PROCESS:
        setattr(TestSingleDevice, _name, None)
