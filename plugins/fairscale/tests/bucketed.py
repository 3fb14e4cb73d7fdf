"""DDPShardedStrategy as it would be with FairScale's own buckets: what the package keeps its users from."""

from core_fairscale.sharded_model import ShardedModel
from core_fairscale.strategy import DDPShardedStrategy


class Bucketed(ShardedModel):
    reduce_buffer_size = 2**23  # FairScale's default


class BucketedStrategy(DDPShardedStrategy):
    def _wrap(self, module, optimizers):
        model = super()._wrap(module, optimizers)
        names, options = model._names, {"find_unused": False, "broadcast_buffers": True}
        return Bucketed(model.module, optimizers, names, **options)
