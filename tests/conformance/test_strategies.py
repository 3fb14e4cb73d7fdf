"""The built-in strategies."""

from core_testing.builtin import TestSingleDevice

__all__ = ["TestSingleDevice"]
