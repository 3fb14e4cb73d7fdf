"""The timeline of a step of a pipeline, as text, and the folder that `core report` draws it from.

    torchrun --nproc-per-node 4 benchmarks/timeline.py [--schedule 1F1B] [--microbatches 8]

Parts take 15 ms forward and 30 ms backward, in which they sleep: so four ranks overlap on a machine
of two cores too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from step_overhead import OFF
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core_parallel import MeshParallelStrategy, Timeline

WIDTH, FORWARD_S = 32, 0.015


class Slept(torch.autograd.Function):
    """The identity, after a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Part(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Slept.apply(super().forward(x), FORWARD_S)


class Net(Module):
    def __init__(self, num_parts: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.Sequential(*(Part(WIDTH, WIDTH) for _ in range(num_parts)))

    def training_step(self, batch: Any) -> Tensor:
        return self.parts(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--schedule")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--width", type=int, default=96)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    strategy = MeshParallelStrategy(
        pipeline="auto", data=1, schedule=arguments.schedule, microbatches=arguments.microbatches
    )
    timeline = Timeline(dirpath=tempfile.gettempdir())
    trainer = Trainer(strategy=strategy, accelerator="cpu", callbacks=timeline, max_steps=5, **OFF)
    trainer.fit(
        Net(arguments.parts), DataLoader(TensorDataset(torch.randn(160, WIDTH)), batch_size=32)
    )
    trainer.print(timeline.describe(arguments.width))
    spans = [span for row in timeline.rows.values() for span in row]
    computing = sum(span.end_s - span.begin_s for span in spans)
    bubble = 1 - computing / (timeline.duration_s * len(timeline.rows))
    trainer.print(f"{arguments.schedule}: bubble {bubble:.1%}")


if __name__ == "__main__":
    main()
