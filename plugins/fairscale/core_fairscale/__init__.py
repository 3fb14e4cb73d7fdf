"""FairScale's sharded data parallelism for `core`: `Trainer(strategy="ddp_sharded", devices=4)`."""

from core_fairscale._version import __version__
from core_fairscale.fully_sharded import FullyShardedFairScaleStrategy
from core_fairscale.presets import (
    DDPSpawnShardedStrategy,
    ddp_sharded_find_unused_parameters_false,
    ddp_sharded_find_unused_parameters_true,
    ddp_sharded_spawn_find_unused_parameters_false,
    ddp_sharded_spawn_find_unused_parameters_true,
)
from core_fairscale.strategy import DDPShardedStrategy

__all__ = [
    "DDPShardedStrategy",
    "DDPSpawnShardedStrategy",
    "FullyShardedFairScaleStrategy",
    "__version__",
    "ddp_sharded_find_unused_parameters_false",
    "ddp_sharded_find_unused_parameters_true",
    "ddp_sharded_spawn_find_unused_parameters_false",
    "ddp_sharded_spawn_find_unused_parameters_true",
]
