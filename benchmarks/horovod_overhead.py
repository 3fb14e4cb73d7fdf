"""The cost of a step of core-horovod over a loop that calls Horovod by hand.

    horovodrun --gloo -np 2 python benchmarks/horovod_overhead.py

As `two_ranks.py` says.
"""

import horovod.torch as hvd
from two_ranks import Batches, Contest, Group, Net, Run, Stopwatch, compare

from core.strategies import HorovodStrategy


def by_hand(num_steps: int) -> Run:
    module = Net()
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        module.configure_optimizers(), named_parameters=module.named_parameters()
    )
    watch = Stopwatch()
    for batch in Batches(num_steps):
        module(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return watch.stop(module)


if __name__ == "__main__":
    group = Group(hvd.init, hvd.rank, hvd.barrier, hvd.shutdown)
    compare({"horovod": Contest(by_hand, HorovodStrategy, group)}, __doc__.partition("\n\n")[0])
