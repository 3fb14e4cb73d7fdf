"""torch's FSDP2 and tensor parallelism for `core`: `Trainer(strategy="fsdp", devices=4)`."""

from core_fsdp._version import __version__
from core_fsdp.left_groups import forget_left_groups
from core_fsdp.model_parallel import ModelParallelStrategy
from core_fsdp.precision import SetsPolicy, ShardedMixedPrecision
from core_fsdp.presets import fsdp_cpu_offload
from core_fsdp.strategy import FSDPStrategy

__all__ = [
    "FSDPStrategy",
    "ModelParallelStrategy",
    "SetsPolicy",
    "ShardedMixedPrecision",
    "__version__",
    "forget_left_groups",
    "fsdp_cpu_offload",
]
