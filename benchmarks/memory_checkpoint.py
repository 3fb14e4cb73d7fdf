"""The cost of a step with `MemoryCheckpoint`: two ranks, each a node, with it and without it in
turns.

    torchrun --nproc-per-node 2 benchmarks/memory_checkpoint.py [--rounds 5] [--big-steps 8] [--small-steps 100]

The big model has 100 MB of weights in float32, and with Adam's moments a state of 302 MB; the small
one has 4 KB. What is kept is written to `/dev/shm`, where the two nodes have a folder each; the
network between them is the loopback. A round trains every contender once; a figure is the median
over rounds of the median step, a ratio that of two runs of one round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from step_overhead import OFF

from core import Callback, Module, Trainer
from core.callbacks import MemoryCheckpoint

MODELS = {"4 KB": (32, 1), "100 MB": (2048, 6)}
"""Width and number of layers."""
SKIPPED = 2
"""Steps at the beginning that aren't counted: memory is asked for there."""


class Net(Module):
    """Layers of one width."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(width, width, bias=False) for _ in range(num_layers))
        )

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-4)


class Clock(Callback):
    """CPU and clock from the beginning of each step to that of the next, whatever is done between
    them.
    """

    def __init__(self) -> None:
        self.began: list[tuple[float, float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Look at the clock."""
        self.began.append((1e3 * time.process_time(), 1e3 * time.perf_counter()))

    @property
    def step_ms(self) -> list[float]:
        """Of a step in the middle: CPU of this process, and the clock."""
        pairs = list(zip(self.began[SKIPPED:], self.began[SKIPPED + 1 :], strict=False))
        return [
            statistics.median(end[part] - begin[part] for begin, end in pairs) for part in (0, 1)
        ]


def train(strategy: str, model: str, num_steps: int, *, keeps: bool) -> list[float]:
    """Milliseconds of a step, CPU and clock."""
    width, num_layers = MODELS[model]
    clock, net = Clock(), Net(width, num_layers)
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            **OFF,
            accelerator="cpu",
            devices=1,
            num_nodes=2,
            strategy=strategy,
            max_epochs=1,
            use_distributed_sampler=False,
            default_root_dir=root,
            callbacks=[clock, *([MemoryCheckpoint()] if keeps else [])],
        )
        trainer.fit(net, [torch.ones(4, width)] * (num_steps + SKIPPED))
    return clock.step_ms


def _medians(rows: list[list[float]], form: str) -> str:
    return ", ".join(f"{statistics.median(column):{form}}" for column in zip(*rows, strict=True))


def main() -> None:
    """All ranks. Measure, and print a table on rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big-steps", type=int, default=8)
    parser.add_argument("--small-steps", type=int, default=100)
    parser.add_argument("--only", choices=MODELS, nargs="*", default=[*MODELS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": os.environ["RANK"]}
    dist.init_process_group("gloo")
    contests = [(strategy, model) for strategy in ("ddp", "fsdp") for model in options.only]
    found: dict[Any, list[tuple[list[float], list[float]]]] = {contest: [] for contest in contests}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        os.environ["CORE_MEMORY_FOLDER"] = memory
        for _ in range(options.rounds):
            for strategy, model in contests:
                num_steps = options.big_steps if model == "100 MB" else options.small_steps
                without, kept = (
                    train(strategy, model, num_steps, keeps=keeps) for keeps in (False, True)
                )
                found[strategy, model].append((without, kept))
    if dist.get_rank() == 0:
        print(
            "| strategy | weights | step: CPU, clock (ms) | with it: CPU, clock | ratio of CPU, of "
            "clock |"
        )
        print("|" + " --- |" * 5)
        for (strategy, model), rows in found.items():
            cells = [_medians([row[which] for row in rows], ".1f") for which in (0, 1)]
            ratios = [[kept[part] / without[part] for part in (0, 1)] for without, kept in rows]
            print(f"| {strategy} | {model} | {cells[0]} | {cells[1]} | {_medians(ratios, '.2f')} |")
        print(
            f"Load of the machine, which counts this too: {before:.1f} before, "
            f"{os.getloadavg()[0]:.1f} after."
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
