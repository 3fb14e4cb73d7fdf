"""The cost of a step of core-colossalai over a loop that calls Colossal-AI's Booster by hand, with
TorchDDPPlugin.

    torchrun --nproc-per-node 2 benchmarks/colossalai_overhead.py

As `two_ranks.py` says.
"""

from two_ranks import Batches, Contest, Net, Run, Stopwatch, compare

from core.strategies import ColossalAIStrategy
from core_colossalai import library


def by_hand(num_steps: int) -> Run:
    module, booster = Net(), library.booster("torch_ddp", {}, "cpu")
    model, optimizer = library.boost(booster, module, module.configure_optimizers())
    watch = Stopwatch()
    for batch in Batches(num_steps):
        booster.backward(model(batch), optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return watch.stop(module)


if __name__ == "__main__":
    compare({"torch_ddp": Contest(by_hand, ColossalAIStrategy)}, __doc__.partition("\n\n")[0])
