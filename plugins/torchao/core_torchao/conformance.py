"""The conformance suites of core-torchao. Imported by `core check` and the tests only: it needs pytest.

The kit's layers have 4 inputs, fewer than the 32 that share a scale in int4.
"""

from core_testing import PrecisionConformance

_CLIPPED = "torchao passes no gradient to a weight that rounding clips, which of 4 inputs is one in most outputs"


class TestInt8WeightOnly(PrecisionConformance):
    """Evaluates with weights in 8 bits."""

    alias = "int8-weight-only"


class TestInt8Dynamic(PrecisionConformance):
    """Evaluates with weights and inputs in 8 bits."""

    alias = "int8-dynamic"


class TestFloat8WeightOnly(PrecisionConformance):
    """Evaluates with weights in 8 bits that float."""

    alias = "float8-weight-only"


class TestInt8WeightOnlyQAT(PrecisionConformance):
    """Trains with weights rounded to 8 bits."""

    alias = "int8-weight-only-qat"
    known_failures = {"test_gradients_have_their_true_size": _CLIPPED, "test_trains": _CLIPPED}
