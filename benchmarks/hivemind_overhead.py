"""The cost of a step of core-hivemind over a loop that calls hivemind by hand.

    python benchmarks/hivemind_overhead.py

As `two_ranks.py` says, for one peer that is alone, and makes a step of each batch: the smallest
step there is. Times of hivemind's own processes are in those of the clock only. By hand Adam counts
a step of zeros too many, so that weights are close, and not the same.
"""

import hivemind
from two_ranks import ALONE, BATCH_SIZE, Batches, Contest, Net, Run, Stopwatch, compare

from core.strategies import HivemindStrategy


def by_hand(num_steps: int) -> Run:
    module, dht = Net(), hivemind.DHT(start=True)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="by hand",
        optimizer=module.configure_optimizers(),
        target_batch_size=1,
        batch_size_per_step=BATCH_SIZE,
        matchmaking_time=5.0,
        averaging_timeout=30.0,
    )
    watch = Stopwatch()
    for batch in Batches(num_steps):
        module(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = watch.stop(module)
    optimizer.shutdown()
    dht.shutdown()
    return found


def strategy() -> HivemindStrategy:
    return HivemindStrategy(target_batch_size=1, run_id="core", batch_size=BATCH_SIZE)


if __name__ == "__main__":
    compare(
        {"hivemind": Contest(by_hand, strategy, ALONE, tolerance=2e-3)},
        __doc__.partition("\n\n")[0],
    )
