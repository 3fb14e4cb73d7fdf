"""The built-in strategies."""

import pytest

from core_testing import builtin

pytestmark = pytest.mark.numbers


class TestSingleDevice(builtin.TestSingleDevice):
    """Its script is forked: that of core-ddp's suite starts as a user's does."""

    new_interpreter = False
