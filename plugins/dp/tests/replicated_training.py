"""A program: trains on two simulated devices a node, and prints what came of it.

python replicated_training.py dp
RANK=0 ... python replicated_training.py ddp2   # and RANK=1: a process is a node
"""

import json
import os
import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Fabric, Module, Trainer

QUIET = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
)
NUM_SAMPLES, BATCH_SIZE, NUM_EPOCHS = 24, 8, 2


class Net(Module):
    """Steps that log, update metrics, and return a dict and a number."""

    def __init__(self):
        # seconds, also where tests are collected
        from torchmetrics import MeanMetric, MetricCollection, SumMetric

        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.shapes, self.threads = [], set()
        self.sum, self.never_logged = SumMetric(), SumMetric()
        self.collection = nn.ModuleDict(
            {"inner": MetricCollection({"mean": MeanMetric(), "total": SumMetric()})}
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch):
        self.shapes.append(tuple(batch[0].shape))
        self.threads.add(threading.current_thread().name)
        loss = self(batch[0]).square().mean()
        for _ in range(20):  # replicas log at the same time
            self.log("samples", len(batch[0]), reduce_fx="sum", on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=False, on_epoch=True)
        for row in batch[0].detach():  # replicas update at the same time
            self.sum(row.sum())
            self.never_logged.update(row.sum())
        self.log("sum", self.sum, on_step=False, on_epoch=True)
        return {"loss": loss, "size": len(batch[0])}

    def on_train_epoch_end(self):
        self.log("computed", self.never_logged.compute())

    def validation_step(self, batch):
        self.log("val_loss", self(batch[0]).square().mean())
        self.collection["inner"].update(batch[0].sum(1))
        self.log_dict(self.collection["inner"])
        return 1.0

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make_loader(batch_size):
    data = torch.randn(
        NUM_SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return DataLoader(TensorDataset(data), batch_size=batch_size)


def train(num_nodes=1, **options):
    """Weights and what was logged, of two epochs in batches of eight in all."""
    module, loader = Net(), make_loader(BATCH_SIZE // num_nodes)
    # A simulated device can't detach a tensor in inference mode, as torchmetrics does.
    options = {
        "max_epochs": NUM_EPOCHS,
        "num_nodes": num_nodes,
        "inference_mode": False,
        **QUIET,
        **options,
    }
    trainer = Trainer(**options)
    trainer.fit(module, loader, loader)
    weights = {name: value.cpu().tolist() for name, value in module.state_dict().items()}
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {
        "weights": weights,
        "logged": logged,
        "shapes": module.shapes,
        "threads": sorted(module.threads),
    }


def outputs(**options):
    """The output of a module that `Fabric.setup` returned for six rows."""
    fabric = Fabric(**options)
    model = fabric.setup(Net())
    return model(fabric.to_device(next(iter(make_loader(6)))[0])).tolist()


if __name__ == "__main__":
    import simulated_devices  # noqa: F401  # the accelerator "sim"

    alias, num_nodes = sys.argv[1], int(os.environ.get("WORLD_SIZE", "1"))
    result = train(num_nodes, strategy=alias, accelerator="sim", devices=2)
    if num_nodes == 1:
        result["outputs"] = outputs(strategy=alias, accelerator="sim", devices=2)
    print(json.dumps(result))
