"""DeepSpeed for `core`: `Trainer(strategy="deepspeed_stage_3", devices=4)`."""

from core_deepspeed._version import __version__
from core_deepspeed.checkpoint_reader import DeepSpeedFolderReader
from core_deepspeed.native import NativeCheckpointIO
from core_deepspeed.options import DeepSpeedOptions
from core_deepspeed.presets import (
    deepspeed_stage_1,
    deepspeed_stage_1_offload,
    deepspeed_stage_2,
    deepspeed_stage_2_offload,
    deepspeed_stage_3,
    deepspeed_stage_3_offload,
    deepspeed_stage_3_offload_nvme,
)
from core_deepspeed.strategy import DeepSpeedStrategy
from core_deepspeed.universal import UniversalCheckpointIO

__all__ = [
    "DeepSpeedFolderReader",
    "DeepSpeedOptions",
    "DeepSpeedStrategy",
    "NativeCheckpointIO",
    "UniversalCheckpointIO",
    "__version__",
    "deepspeed_stage_1",
    "deepspeed_stage_1_offload",
    "deepspeed_stage_2",
    "deepspeed_stage_2_offload",
    "deepspeed_stage_3",
    "deepspeed_stage_3_offload",
    "deepspeed_stage_3_offload_nvme",
]
