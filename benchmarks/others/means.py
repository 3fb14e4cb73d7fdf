"""The mean of an epoch's validation over two ranks, where the last batch is uneven: how far it is
from the truth.

101 samples in batches of 8, each with a value of its own; the metric is the mean of the values.
"""

from collections.abc import Callable

import accelerate
import lightning
import torch
import torch.distributed as dist
import torchmetrics
from others.processes import Failure, forked
from rich.table import Table
from step_overhead import OFF
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import core

NUM_SAMPLES, BATCH_SIZE, NUM_RANKS = 101, 8, 2
VALUES = torch.arange(NUM_SAMPLES, dtype=torch.float64).square()


def data(**options) -> DataLoader:
    return DataLoader(TensorDataset(VALUES), batch_size=BATCH_SIZE, **options)


def of_trainer(library, base, **how) -> float:
    class Net(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def validation_step(self, batch, batch_idx):
            self.log("value", batch[0].mean(), batch_size=len(batch[0]), on_epoch=True, **how)

    (metrics,) = trainer_of(library).validate(Net(), data(), verbose=False)
    return float(metrics["value"])


def trainer_of(library):
    return library.Trainer(accelerator="cpu", strategy="ddp", devices=NUM_RANKS, **OFF)


def of_torchmetrics(library, base) -> float:
    class Net(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mean = (
                nn.Linear(1, 1),
                torchmetrics.MeanMetric().set_dtype(torch.float64),
            )

        def validation_step(self, batch, batch_idx):
            self.mean.update(batch[0])
            self.log("value", self.mean, on_epoch=True)

    (metrics,) = trainer_of(library).validate(Net(), data(), verbose=False)
    return float(metrics["value"])


def of_accelerate() -> float:
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(data())
    return torch.cat([accelerator.gather_for_metrics(values) for (values,) in loader]).mean().item()


def of_hand() -> float:
    dist.init_process_group("gloo")
    own = data(sampler=DistributedSampler(TensorDataset(VALUES), shuffle=False))
    total = torch.zeros(2, dtype=torch.float64)
    for (values,) in own:
        total += torch.stack([values.sum(), torch.tensor(float(len(values)), dtype=torch.float64)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


WAYS: dict[str, Callable[[], float]] = {
    "core, self.log": lambda: of_trainer(core, core.Module),
    "core, self.log of torchmetrics' MeanMetric": lambda: of_torchmetrics(core, core.Module),
    "Lightning, self.log(sync_dist=True)": lambda: of_trainer(
        lightning, lightning.LightningModule, sync_dist=True
    ),
    "Lightning, self.log of torchmetrics' MeanMetric": lambda: of_torchmetrics(
        lightning, lightning.LightningModule
    ),
    "Accelerate, gather_for_metrics": of_accelerate,
    "by hand, DistributedSampler and all_reduce": of_hand,
}


def compare_means() -> Table:
    table = Table(f"{NUM_SAMPLES} samples, {NUM_RANKS} ranks", "mean", "of the truth, wrong by")
    truth = VALUES.mean().item()
    for name, way in WAYS.items():
        first, *_ = forked(way, NUM_RANKS)
        if isinstance(first, Failure):
            table.add_row(name, str(first))
        else:
            table.add_row(name, f"{first:.3f}", f"{abs(first - truth) / truth:.1e}")
    return table
