"""Names that people know from other libraries and look for here, each with what to write
instead.
"""

from __future__ import annotations

from types import MappingProxyType

DEFAULT_PARALLEL_STRATEGY = "ddp"
"""Alias of the strategy for several devices, if the user names none."""

_FOUR_BITS = (
    "core has nothing of bitsandbytes: 'int4-weight-only' of core-torchao loads in 4 "
    "bits, to evaluate and predict."
)
_FLOAT8 = (
    "core has nothing of Transformer Engine: 'fp8-mixed' of core-torchao trains with products of 8 "
    "bits, and 'float8-weight-only' evaluates and predicts with weights of 8."
)
_HALF = "Write '16-mixed', with weights in 32 bits, or '16-true'."
_OWN_DEVICE = (
    "No package of this project has {0}. An accelerator for it is a subclass of core.accelerators."
    "TorchDeviceAccelerator, in a package that `core new-plugin` begins, or registered in the "
    "script."
)

OTHER_NAMES: MappingProxyType[tuple[str, str], tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        ("strategy", "fsdp_native"): ("Write 'fsdp': it is torch's own FSDP.", ("fsdp",)),
        ("strategy", "fsdp_native_full_shard_offload"): (
            "Write 'fsdp_cpu_offload': it is torch's own FSDP, with parameters on the CPU.",
            ("fsdp_cpu_offload",),
        ),
        ("strategy", "ddp_fully_sharded"): (
            "Write 'fsdp', which is torch's own, or 'fsdp_fairscale' for FairScale's, which that "
            "name meant.",
            ("fsdp", "fsdp_fairscale"),
        ),
        ("strategy", "fsdp2"): ("Write 'fsdp': it is torch's own, which is FSDP2.", ("fsdp",)),
        ("strategy", "ddp_cpu"): ("Write strategy='ddp' and accelerator='cpu'.", ("ddp",)),
        ("strategy", "hpu_ddp"): ("Write 'hpu_parallel'.", ("hpu_parallel",)),
        ("strategy", "hpu_fsdp"): (
            "Nothing here shards by FSDP on Gaudi devices: 'hpu_parallel' has a whole model on "
            "each.",
            ("hpu_parallel",),
        ),
        ("accelerator", "xpu"): (_OWN_DEVICE.format("Intel's GPUs"), ()),
        ("accelerator", "npu"): (_OWN_DEVICE.format("Ascend's NPUs"), ()),
        ("accelerator", "rocm"): ("Write 'cuda': torch calls AMD's GPUs so too.", ("cuda",)),
        **{
            ("precision", name): (_HALF, ("16_mixed", "16_true"))
            for name in ("fp16", "float16", "half", "amp")
        },
        **{("precision", name): ("Write '32-true'.", ("32_true",)) for name in ("fp32", "float32")},
        **{
            ("precision", name): (_FLOAT8, ("fp8_mixed", "float8_weight_only"))
            for name in ("transformer_engine", "transformer_engine_float16", "float8", "fp8")
        },
        **{
            ("precision", name): (_FOUR_BITS, ("int4_weight_only",))
            for name in ("nf4", "nf4_dq", "fp4", "fp4_dq")
        },
        ("precision", "int8"): (
            "Write 'int8-weight-only' or 'int8-dynamic', of core-torchao, to evaluate and predict.",
            ("int8_weight_only", "int8_dynamic"),
        ),
        ("precision", "int8_training"): (
            "core has nothing of bitsandbytes: 'int8-weight-only-qat' of core-torchao trains for 8 "
            "bits.",
            ("int8_weight_only_qat",),
        ),
    }
)
"""For names that other libraries have, by `(kind, name)`: a sentence on what to write here, and the
aliases in it.
"""


KNOWN_FORMATS: MappingProxyType[bytes, tuple[str, str]] = MappingProxyType(
    {b"pytorch-lightning_version": ("PyTorch Lightning", "lightning")}
)
"""For bytes near the beginning of a file: the program that writes such files, and the alias of
their reader.
"""
