"""Well-known aliases and the distribution that each belongs to. The one place in core that names backends.

It serves two ends: an error can say what to install, or that there is nothing yet, also for the names of other
libraries; and an alias belongs to its distribution even where that is not installed, so that no other can take it
over. Nothing is imported or chosen by it.
"""

from __future__ import annotations

from types import MappingProxyType

DEFAULT_PARALLEL_STRATEGY = "ddp"
"""Alias of the strategy for several devices, if the user names none."""

PACKAGES = frozenset(
    {
        "core-aim",
        "core-bagua",
        "core-colossalai",
        "core-comet",
        "core-ddp",
        "core-deepspeed",
        "core-dp",
        "core-fairscale",
        "core-fsdp",
        "core-hivemind",
        "core-horovod",
        "core-hpu",
        "core-ipu",
        "core-lightning",
        "core-mlflow",
        "core-parallel",
        "core-ray",
        "core-tensorboard",
        "core-testing",
        "core-torchao",
        "core-trackio",
        "core-wandb",
        "core-xla",
    }
)
"""Our distributions: those that `plugins/` holds."""

_DDP = ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
_DDP_SHARDED = ("ddp_sharded", "ddp_sharded_spawn")
_UNUSED = ("", "_find_unused_parameters_false", "_find_unused_parameters_true")

_ALIASES: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        "core-ddp": tuple(alias + suffix for alias in _DDP for suffix in _UNUSED),
        "core-dp": ("dp", "ddp2"),
        "core-fsdp": ("fsdp", "fsdp_cpu_offload", "model_parallel"),
        "core-parallel": ("parallel", "pipeline"),
        "core-deepspeed": (
            "deepspeed",
            "deepspeed_stage_1",
            "deepspeed_stage_1_offload",
            "deepspeed_stage_2",
            "deepspeed_stage_2_offload",
            "deepspeed_stage_3",
            "deepspeed_stage_3_offload",
            "deepspeed_stage_3_offload_nvme",
        ),
        "core-xla": (
            *("xla", "xla_debug", "xla_fsdp", "xla_spmd", "single_xla", "single_tpu", "single_device_xla"),
            *("tpu_spawn", "tpu_spawn_debug"),
        ),
        "core-hpu": ("hpu_parallel", "hpu_single", "single_hpu", "hpu_deepspeed"),
        "core-ipu": ("ipu_strategy", "ipu"),
        "core-colossalai": ("colossalai",),
        "core-bagua": ("bagua",),
        "core-hivemind": ("hivemind", "collaborative"),
        "core-horovod": ("horovod",),
        "core-fairscale": (
            "fairscale",
            "fsdp_fairscale",
            *(alias + suffix for alias in _DDP_SHARDED for suffix in _UNUSED),
        ),
    },
    "accelerator": {
        "core-xla": ("tpu", "xla"),
        "core-hpu": ("hpu",),
        "core-ipu": ("ipu",),
    },
    "cluster environment": {"core-horovod": ("horovod",), "core-ray": ("ray_train",), "core-xla": ("xla",)},
    "launcher": {"core-horovod": ("horovod",), "core-ray": ("ray",), "core-xla": ("xla",)},
    "precision": {
        "core-torchao": (
            *("int8_weight_only", "int8_dynamic", "int4_weight_only", "float8_weight_only"),
            *("int8_weight_only_qat", "int4_weight_only_qat"),
        ),
    },
    "logger": {
        "core-aim": ("aim",),
        "core-comet": ("comet",),
        "core-mlflow": ("mlflow",),
        "core-tensorboard": ("tensorboard",),
        "core-trackio": ("trackio",),
        "core-wandb": ("wandb",),
    },
    "command": {"core-testing": ("check", "new_plugin")},
    "checkpoint io": {"core-lightning": ("lightning",)},
    "checkpoint reader": {"core-deepspeed": ("deepspeed",), "core-lightning": ("lightning",)},
    "prelude": {"core-lightning": ("lightning", "lightning_trusted")},
}

_CLASSES: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        "core-ddp": ("DDPStrategy",),
        "core-dp": ("DataParallelStrategy", "DDP2Strategy"),
        "core-fsdp": ("FSDPStrategy", "ModelParallelStrategy"),
        "core-deepspeed": ("DeepSpeedStrategy",),
        "core-xla": (
            "XLAStrategy",
            "XLAFSDPStrategy",
            "XLASPMDStrategy",
            "SingleXLAStrategy",
            "SingleDeviceXLAStrategy",
            "SingleTPUStrategy",
        ),
        "core-hpu": ("HPUParallelStrategy", "SingleHPUStrategy"),
        "core-ipu": ("IPUStrategy",),
        "core-colossalai": ("ColossalAIStrategy",),
        "core-bagua": ("BaguaStrategy",),
        "core-hivemind": ("HivemindStrategy",),
        "core-horovod": ("HorovodStrategy",),
        "core-fairscale": ("DDPShardedStrategy", "DDPSpawnShardedStrategy", "DDPFullyShardedStrategy"),
    },
    "accelerator": {
        "core-xla": ("XLAAccelerator", "TPUAccelerator"),
        "core-hpu": ("HPUAccelerator",),
        "core-ipu": ("IPUAccelerator",),
    },
    "precision": {"core-torchao": ("QATPrecision", "TorchAOPrecision")},
    "logger": {
        "core-aim": ("AimLogger",),
        "core-comet": ("CometLogger",),
        "core-mlflow": ("MLFlowLogger",),
        "core-tensorboard": ("TensorBoardLogger",),
        "core-trackio": ("TrackioLogger",),
        "core-wandb": ("WandbLogger",),
    },
}

_FOUR_BITS = (
    "core has nothing of bitsandbytes: 'int4-weight-only' of core-torchao loads in 4 bits, to evaluate and predict."
)
_FLOAT8 = (
    "Nothing here trains in 8 bits, as Transformer Engine does: 'bf16-mixed' trains in 16, and 'float8-weight-only' of "
    "core-torchao evaluates and predicts in 8."
)
_HALF = "Write '16-mixed', with weights in 32 bits, or '16-true'."
_OWN_DEVICE = (
    "No package of this project has {0}. An accelerator for it is a subclass of core.accelerators."
    "TorchDeviceAccelerator, in a package that `core new-plugin` begins, or registered in the script."
)

OTHER_NAMES: MappingProxyType[tuple[str, str], tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        ("strategy", "fsdp_native"): ("Write 'fsdp': it is torch's own FSDP.", ("fsdp",)),
        ("strategy", "fsdp_native_full_shard_offload"): (
            "Write 'fsdp_cpu_offload': it is torch's own FSDP, with parameters on the CPU.",
            ("fsdp_cpu_offload",),
        ),
        ("strategy", "ddp_fully_sharded"): (
            "Write 'fsdp', which is torch's own, or 'fsdp_fairscale' for FairScale's, which that name meant.",
            ("fsdp", "fsdp_fairscale"),
        ),
        ("strategy", "ddp_cpu"): ("Write strategy='ddp' and accelerator='cpu'.", ("ddp",)),
        ("strategy", "hpu_ddp"): ("Write 'hpu_parallel'.", ("hpu_parallel",)),
        ("strategy", "hpu_fsdp"): (
            "Nothing here shards by FSDP on Gaudi devices: 'hpu_parallel' has a whole model on each.",
            ("hpu_parallel",),
        ),
        ("accelerator", "xpu"): (_OWN_DEVICE.format("Intel's GPUs"), ()),
        ("accelerator", "npu"): (_OWN_DEVICE.format("Ascend's NPUs"), ()),
        ("accelerator", "rocm"): ("Write 'cuda': torch calls AMD's GPUs so too.", ("cuda",)),
        **{("precision", name): (_HALF, ("16_mixed", "16_true")) for name in ("fp16", "float16", "half", "amp")},
        **{("precision", name): ("Write '32-true'.", ("32_true",)) for name in ("fp32", "float32")},
        **{
            ("precision", name): (_FLOAT8, ("bf16_mixed", "float8_weight_only"))
            for name in ("transformer_engine", "transformer_engine_float16", "float8", "fp8")
        },
        **{("precision", name): (_FOUR_BITS, ("int4_weight_only",)) for name in ("nf4", "nf4_dq", "fp4", "fp4_dq")},
        ("precision", "int8"): (
            "Write 'int8-weight-only' or 'int8-dynamic', of core-torchao, to evaluate and predict.",
            ("int8_weight_only", "int8_dynamic"),
        ),
        ("precision", "int8_training"): (
            "core has nothing of bitsandbytes: 'int8-weight-only-qat' of core-torchao trains for 8 bits.",
            ("int8_weight_only_qat",),
        ),
    }
)
"""For names that other libraries have, by `(kind, name)`: a sentence on what to write here, and the aliases in it."""


KNOWN_FORMATS: MappingProxyType[bytes, tuple[str, str]] = MappingProxyType(
    {b"pytorch-lightning_version": ("PyTorch Lightning", "lightning")}
)
"""For bytes near the beginning of a file: the program that writes such files, and the alias of their reader."""


def _by_name(table: dict[str, dict[str, tuple[str, ...]]]) -> MappingProxyType[tuple[str, str], str]:
    return MappingProxyType(
        {
            (kind, name): distribution
            for kind, owners in table.items()
            for distribution, names in owners.items()
            for name in names
        }
    )


KNOWN_ALIASES = _by_name(_ALIASES)
"""Distribution by `(kind, alias)`, such as `("strategy", "ddp")`."""

KNOWN_CLASSES = _by_name(_CLASSES)
"""Distribution by `(kind, class name)`: what to install, for the error of an import."""
