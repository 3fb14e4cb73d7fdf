"""The conformance suites of core-torchao. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import PrecisionConformance

_CLIPPED = (
    "torchao passes no gradient to a weight that rounding clips, which of 4 inputs is one "
    "in most outputs"
)
_GROUPS = (
    "32 inputs of a layer share a scale in int4, and the kit's layers, of 4 or 6 inputs, are "
    "refused"
)
_REFUSED = {"test_converts_modules_in_place": _GROUPS, "test_computes_in_its_format": _GROUPS}
_SIXTEENS = (
    "products of 8-bit floats need layers whose sizes are multiples of 16; the kit's, of 4 "
    "or 6, are refused"
)
_WIDER = dict.fromkeys(
    (*_REFUSED, "test_gradients_have_their_true_size", "test_trains"),
    _SIXTEENS,
)


class TestInt8WeightOnly(PrecisionConformance):
    """Evaluates with weights in 8 bits."""

    alias = "int8-weight-only"


class TestInt8Dynamic(PrecisionConformance):
    """Evaluates with weights and inputs in 8 bits."""

    alias = "int8-dynamic"


class TestFloat8WeightOnly(PrecisionConformance):
    """Evaluates with weights in 8 bits that float."""

    alias = "float8-weight-only"


class TestFloat8Mixed(PrecisionConformance):
    """Trains with products of 8-bit floats, a scale for each tensor."""

    alias = "fp8-mixed"
    known_failures = _WIDER


class TestFloat8MixedRowwise(PrecisionConformance):
    """Trains with products of 8-bit floats, a scale for each row."""

    alias = "fp8-mixed-rowwise"
    known_failures = _WIDER


class TestInt8WeightOnlyQAT(PrecisionConformance):
    """Trains with weights rounded to 8 bits."""

    alias = "int8-weight-only-qat"
    known_failures = {"test_gradients_have_their_true_size": _CLIPPED, "test_trains": _CLIPPED}


class TestInt4WeightOnly(PrecisionConformance):
    """Evaluates with weights in 4 bits."""

    alias = "int4-weight-only"
    known_failures = _REFUSED


class TestInt4WeightOnlyQAT(PrecisionConformance):
    """Trains with weights rounded to 4 bits."""

    alias = "int4-weight-only-qat"
    known_failures = {
        **_REFUSED,
        "test_gradients_have_their_true_size": _GROUPS,
        "test_trains": _GROUPS,
    }
