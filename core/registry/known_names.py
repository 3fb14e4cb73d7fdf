"""Names that core itself goes by, and what names that others use mean here."""

from __future__ import annotations

from types import MappingProxyType

DEFAULT_PARALLEL_STRATEGY = "ddp"
"""Alias of the strategy for several devices, if the user names none."""

OTHER_NAMES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "amp": ("16_mixed",),
        "ddp_cpu": ("ddp",),
        "float16": ("16_mixed", "16_true"),
        "float32": ("32_true",),
        "float8": ("fp8_mixed", "float8_weight_only"),
        "fp16": ("16_mixed", "16_true"),
        "fp32": ("32_true",),
        "fp8": ("fp8_mixed", "float8_weight_only"),
        "fsdp_native": ("fsdp",),
        "half": ("16_mixed", "16_true"),
        "int8": ("int8_weight_only", "int8_dynamic"),
        "rocm": ("cuda",),
    }
)
"""Aliases that are meant by names of other libraries which no alias looks like."""
