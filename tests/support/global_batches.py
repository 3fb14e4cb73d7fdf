"""Training in exact arithmetic, so that ranks may be compared: a module, its data, and how near is
equal.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from core import Module
from support.small_nets import QUIET

NUM_SAMPLES = 45  # in windows of 12: three whole ones, and nine samples
QUIET = {**QUIET, "limit_val_batches": 0}


def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(NUM_SAMPLES, 3, dtype=torch.float64, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(NUM_SAMPLES))


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.global_step, len(batch[0])))
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}
        ]


def close(weights):
    return pytest.approx(weights, rel=0, abs=1e-12)
