"""The built-in strategies."""

from core.testing.builtin import TestSingleDevice

__all__ = ["TestSingleDevice"]
