"""torchao's quantization of weights, to evaluate with and to train for, and its training in 8-bit
floats.
"""

from core_torchao._version import __version__
from core_torchao.float8 import Float8Precision
from core_torchao.precision import QATPrecision, TorchAOPrecision
from core_torchao.presets import (
    float8_weight_only,
    fp8_mixed,
    fp8_mixed_rowwise,
    int4_weight_only,
    int4_weight_only_qat,
    int8_dynamic,
    int8_weight_only,
    int8_weight_only_qat,
)

__all__ = [
    "Float8Precision",
    "QATPrecision",
    "TorchAOPrecision",
    "__version__",
    "float8_weight_only",
    "fp8_mixed",
    "fp8_mixed_rowwise",
    "int4_weight_only",
    "int4_weight_only_qat",
    "int8_dynamic",
    "int8_weight_only",
    "int8_weight_only_qat",
]
