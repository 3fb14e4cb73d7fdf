"""The precisions that have a name of their own. Each is a torchao configuration that runs on a CPU
too.
"""

from __future__ import annotations

import torch

from core_torchao import library
from core_torchao.float8 import Float8Precision
from core_torchao.precision import QATPrecision, TorchAOPrecision

_GROUP_SIZE = 32
"""Inputs of a layer that share a scale; torchao's own for int4."""

_INT4 = torch.int4  # type: ignore[attr-defined]  # torch has it, and its stubs don't


def int8_weight_only() -> TorchAOPrecision:
    """`int8-weight-only`: weights in 8 bits, a scale for each output."""
    return TorchAOPrecision(library.load().Int8WeightOnlyConfig(), name="int8-weight-only")


def int8_dynamic() -> TorchAOPrecision:
    """`int8-dynamic`: weights in 8 bits, and each row of the inputs too, as it comes."""
    return TorchAOPrecision(
        library.load().Int8DynamicActivationInt8WeightConfig(), name="int8-dynamic"
    )


def int4_weight_only() -> TorchAOPrecision:
    """`int4-weight-only`: weights in 4 bits, a scale for each 32 inputs of an output."""
    quantization = library.load()
    granularity = quantization.PerGroup(_GROUP_SIZE)
    config = quantization.IntxWeightOnlyConfig(weight_dtype=_INT4, granularity=granularity)
    return TorchAOPrecision(config, name="int4-weight-only")


def float8_weight_only() -> TorchAOPrecision:
    """`float8-weight-only`: weights in 8 bits that float."""
    return TorchAOPrecision(library.load().Float8WeightOnlyConfig(), name="float8-weight-only")


def int8_weight_only_qat() -> QATPrecision:
    """`int8-weight-only-qat`: training that rounds weights as `int8-weight-only` does."""
    quantization = library.load()
    config = quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int8, granularity=quantization.PerAxis(0)
    )
    return QATPrecision(config, name="int8-weight-only-qat")


def int4_weight_only_qat() -> QATPrecision:
    """`int4-weight-only-qat`: training that rounds weights as `int4-weight-only` does."""
    quantization = library.load()
    granularity = quantization.PerGroup(_GROUP_SIZE)
    config = quantization.IntxWeightOnlyConfig(weight_dtype=_INT4, granularity=granularity)
    return QATPrecision(config, name="int4-weight-only-qat")


def fp8_mixed() -> Float8Precision:
    """`fp8-mixed`: linear layers multiply 8-bit floats, with a scale for each tensor; all else as
    in `bf16-mixed`.
    """
    return Float8Precision("tensorwise", name="fp8-mixed")


def fp8_mixed_rowwise() -> Float8Precision:
    """`fp8-mixed-rowwise`: likewise, with a scale for each row, which is slower and more exact."""
    return Float8Precision("rowwise", name="fp8-mixed-rowwise")
