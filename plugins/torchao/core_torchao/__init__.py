"""torchao's quantization of weights: to evaluate with, and to train for."""

from core_torchao._version import __version__
from core_torchao.precision import QATPrecision, TorchAOPrecision
from core_torchao.presets import (
    float8_weight_only,
    int4_weight_only,
    int4_weight_only_qat,
    int8_dynamic,
    int8_weight_only,
    int8_weight_only_qat,
)

__all__ = [
    "QATPrecision",
    "TorchAOPrecision",
    "__version__",
    "float8_weight_only",
    "int4_weight_only",
    "int4_weight_only_qat",
    "int8_dynamic",
    "int8_weight_only",
    "int8_weight_only_qat",
]
