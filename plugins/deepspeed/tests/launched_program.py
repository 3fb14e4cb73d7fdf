"""A training that somebody else starts.

python launched_program.py FOLDER ARGUMENTS

Each rank writes what it knows to `rank-R` in FOLDER. ARGUMENTS, in JSON, are the Trainer's.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core_testing.ranks import QUIET

BATCH = 8


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.losses = []

    def training_step(self, batch):
        inputs = batch[0]
        loss = functional.mse_loss(self.layers(inputs), inputs.sum(1, keepdim=True).sin())
        self.losses.append(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean").item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("arguments", type=json.loads)
    options, further = parser.parse_known_args()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        **QUIET,
        use_distributed_sampler=True,
        **options.arguments,
    )
    data, module = torch.randn(5 * BATCH, 4, generator=torch.Generator().manual_seed(1)), Net()
    trainer.fit(module, DataLoader(TensorDataset(data), batch_size=BATCH // trainer.world_size))
    environment = trainer.strategy.cluster_environment
    known = {
        "environment": type(environment).__name__,
        "world_size": trainer.world_size,
        "node_rank": trainer.node_rank,
        "local_rank": trainer.local_rank,
        "losses": module.losses,
        "further": further,
    }
    (options.folder / f"rank-{trainer.global_rank}").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
