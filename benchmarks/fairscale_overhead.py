"""The cost of a step of core-fairscale over a loop that uses OSS and ShardedDataParallel by hand.

    torchrun --nproc-per-node 2 benchmarks/fairscale_overhead.py

As `two_ranks.py` says. By hand gradients become zeros: with `zero_grad()` as it is, FairScale's
buckets lose them.
"""

from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS
from two_ranks import Batches, Contest, Net, Run, Stopwatch, compare

from core.strategies import DDPShardedStrategy


def sharded(reduce_buffer_size: int):
    def run(num_steps: int) -> Run:
        module = Net()
        given = module.configure_optimizers()
        optimizer = OSS(given.param_groups, optim=type(given), **given.defaults)
        model = ShardedDataParallel(module, optimizer, reduce_buffer_size=reduce_buffer_size)
        watch = Stopwatch()
        for batch in Batches(num_steps):
            model(batch).backward()
            optimizer.step()
            model.zero_grad(set_to_none=False)
        return watch.stop(module)

    return run


if __name__ == "__main__":
    compare(
        {
            "buckets by hand": Contest(sharded(2**23), DDPShardedStrategy),
            "no buckets by hand": Contest(sharded(0), DDPShardedStrategy),
        },
        __doc__.partition("\n\n")[0],
    )
