"""Trains a small net by three strategies, and prints digests of losses and weights: a refactoring
changes no bit.

    python tests/by_hand/same_bits.py > before.json     # in an environment with the earlier commit installed
    python tests/by_hand/same_bits.py > after.json      # in one with this commit: `cmp` finds no difference

Both environments have the same torch, and run on the same machine.
"""

import hashlib
import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import core
from core import Module, Trainer

STRATEGIES = {"single_device": 1, "ddp_fork": 2, "fsdp": 1}
OPTIONS = {
    "plain": {},
    "accumulated": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    "bf16": {"precision": "bf16-mixed"},
}
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(Module):
    """Layers of several kinds, one of which draws random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
        )
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item().hex())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def digests(strategy, devices, options):
    """Of the losses in this process, the metrics and, where the ranks' weights come back, the
    weights.
    """
    torch.manual_seed(3)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
    data, net = TensorDataset(inputs, inputs[:, :4].argmax(1)), Net()
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, max_epochs=3, **options, **QUIET
    )
    trainer.fit(net, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8))
    weights = [] if strategy == "fsdp" else [each.detach().flatten() for each in net.parameters()]
    seen = {
        "losses": "".join(net.losses).encode(),
        "metrics": repr(
            {name: float(value).hex() for name, value in trainer.callback_metrics.items()}
        ).encode(),
        "weights": torch.cat(weights).numpy().tobytes() if weights else b"",
    }
    return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in seen.items()}


def main():
    warnings.simplefilter("ignore")
    print(core.__file__, file=sys.stderr)
    found = {
        f"{strategy}, {name}": digests(strategy, devices, options)
        for strategy, devices in STRATEGIES.items()
        for name, options in OPTIONS.items()
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
