"""Time of the first step of a model that is compiled whole, and by units:
`compile={"region": "units"}`. One process.

python benchmarks/compile_units.py [--layers 12] [--width 128]

Each run is a process of its own with an empty cache of inductor's, so that the first step compiles
all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

from core import Fabric

WAYS = {"not compiled": False, "whole": True, "by units": {"region": "units"}}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, 4, batch_first=True),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


def build(width, num_layers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.Sequential(*(Block(width) for _ in range(num_layers)))
    )


def measure(way, width, num_layers):
    fabric = Fabric(accelerator="cpu", devices=1, compile=WAYS[way])
    module = build(width, num_layers)
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    batch, times = torch.randn(4, 32, width), []
    for _ in range(12):
        started = time.perf_counter()
        loss = model(batch).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    from torch._dynamo.utils import counters

    num_operations = counters["stats"]["calls_captured"]
    print(json.dumps([times[0], min(times[2:]) * 1000, num_operations, loss.item()]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments.width, arguments.layers)
        return
    print(f"{arguments.layers} blocks of width {arguments.width}")
    print(
        f"{'':14} {'first step, s':>13} {'ms a step':>10} {'operations compiled':>20} {'loss':>9}"
    )
    for way in WAYS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-W", "ignore", __file__, "--way", way]
            command += ["--layers", str(arguments.layers), "--width", str(arguments.width)]
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
        first, milliseconds, num_operations, loss = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:14} {first:13.1f} {milliseconds:10.1f} {num_operations:20} {loss:9.5f}")


if __name__ == "__main__":
    main()
