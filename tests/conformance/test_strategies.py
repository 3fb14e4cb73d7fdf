"""The built-in strategies."""

import pytest

from core_testing.builtin import TestSingleDevice

__all__ = ["TestSingleDevice"]

pytestmark = pytest.mark.numbers
