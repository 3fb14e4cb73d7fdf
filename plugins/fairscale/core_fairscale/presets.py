"""The aliases that are `DDPShardedStrategy` with options: how processes start, whether parameters
may stay unused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from core_fairscale.strategy import DDPShardedStrategy


class DDPSpawnShardedStrategy(DDPShardedStrategy):
    """`DDPShardedStrategy` whose processes `multiprocessing` makes, with the start method
    `"spawn"`.
    """

    def __init__(self, *given: Any, start_method: str = "spawn", **options: Any) -> None:
        """Options of `DDPShardedStrategy`."""
        super().__init__(*given, start_method=start_method, **options)


ddp_sharded_find_unused_parameters_false = partial(DDPShardedStrategy, find_unused_parameters=False)
ddp_sharded_find_unused_parameters_true = partial(DDPShardedStrategy, find_unused_parameters=True)
ddp_sharded_spawn_find_unused_parameters_false = partial(
    DDPSpawnShardedStrategy, find_unused_parameters=False
)
ddp_sharded_spawn_find_unused_parameters_true = partial(
    DDPSpawnShardedStrategy, find_unused_parameters=True
)
