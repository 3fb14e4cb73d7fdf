"""The cost of comparing what ranks have alike: the same loop with and without it, step by step in
turns.

    torchrun --nproc-per-node 2 benchmarks/comparing_ranks.py

Shown are the median step of each, and of ten parts of the run the median ratio and the range of
ratios, which is the noise; then what a step takes longer in which ranks are compared, and its share
of all steps.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

from core import Fabric

NUM_FEATURES, BATCH_SIZE = 256, 32


class Loop:
    """A loop of one strategy, one step at a time."""

    def __init__(self, strategy: str, *, compares: bool) -> None:
        self.fabric = Fabric(accelerator="cpu", strategy=strategy)
        self.fabric.launch()
        layers = (
            layer for _ in range(8) for layer in (nn.Linear(NUM_FEATURES, NUM_FEATURES), nn.ReLU())
        )
        module = nn.Sequential(*layers)
        self.model, self.optimizer = self.fabric.setup(
            module, torch.optim.AdamW(module.parameters())
        )
        self.fabric.session.compares_ranks = compares
        self.batch, self.steps_ms = torch.randn(BATCH_SIZE, NUM_FEATURES), list[float]()

    def step(self) -> None:
        dist.barrier()
        began_s = time.perf_counter()
        self.fabric.backward(self.model(self.batch).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_ms.append(1e3 * (time.perf_counter() - began_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1024)
    num_steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for strategy in ("ddp", "fsdp"):
        loops = [Loop(strategy, compares=compares) for compares in (True, False)]
        for number in range(num_steps):
            for loop in loops if number % 2 else reversed(loops):
                loop.step()
        if dist.get_rank() == 0:
            print(
                f"{strategy}, {dist.get_world_size()} ranks: "
                f"{described(*(loop.steps_ms for loop in loops))}"
            )
    dist.destroy_process_group()


def described(with_ms: list[float], without_ms: list[float]) -> str:
    """The figures in words."""
    compared = [2**power - 1 for power in range(len(with_ms).bit_length())]
    parts = [
        slice(begin, begin + len(with_ms) // 10)
        for begin in range(0, len(with_ms) // 10 * 10, len(with_ms) // 10)
    ]
    ratios = [
        statistics.median(with_ms[part]) / statistics.median(without_ms[part]) for part in parts
    ]
    step_ms = statistics.median(without_ms)
    longer_ms = statistics.median(with_ms[step] - without_ms[step] for step in compared)
    share = len(compared) * longer_ms / sum(without_ms)
    return (
        f"{statistics.median(with_ms):.2f} ms with, {step_ms:.2f} ms without; ratio "
        f"{statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}; a comparison "
        f"{longer_ms:.1f} ms, {share:.2%} of all."
    )


if __name__ == "__main__":
    main()
