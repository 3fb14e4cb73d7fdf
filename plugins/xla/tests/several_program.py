"""Trains in two processes of torch_xla, whose collectives go over gloo here; prints what happened
on rank 0.

python several_program.py
"""

import json
import os

import replication
import torch
import torchmetrics
from lessons import QUIET, Net, make_data, refusal
from torch.utils.data import DataLoader

from core import ConfigurationError, Fabric, Trainer
from core.strategies import XLAStrategy

WORLD_SIZE = 2


class Replicated(XLAStrategy):
    """Ranks that the launcher of scripts starts."""

    launcher_name = "subprocess"

    def check_replication(self):
        # of this process alone: the next run's two are of two
        os.environ.pop("CPU_NUM_DEVICES", None)
        replication.install(self.global_rank, self.world_size)
        super().check_replication()


class Unreplicated(Replicated):
    """Ranks that torch_xla doesn't know, though it counts as many."""

    def check_replication(self):
        super().check_replication()
        replication.xm.all_gather = lambda value, **_: torch.cat([value] * WORLD_SIZE)


class Measured(Net):
    """With a metric in the module, whose states are on the device, and predictions that are
    gathered.
    """

    def __init__(self):
        super().__init__()
        self.measured, self.seen, self.gathered = (
            torchmetrics.MeanMetric(),
            torchmetrics.CatMetric(),
            [],
        )

    def validation_step(self, batch, batch_idx):
        errors = (self(batch[0]) - batch[1]).square().mean(1)
        self.measured.update(errors)
        self.log("measured", self.measured)
        self.gathered.append(self.all_gather(errors))

    def on_validation_epoch_end(self):
        self.seen.update(torch.ones(self.trainer.global_rank + 1, device=self.device))
        self.num_seen = self.seen.compute().numel()
        self.seen.reset()


def fabric_told(fabric):
    rank, device = fabric.global_rank, fabric.device
    own = torch.tensor([1.0, 2.0], device=device) * (rank + 1)
    wanted = own.clone().requires_grad_()
    # Rank n's loss weighs row r by (n + 1) * (r + 1).
    weights = torch.tensor([[1.0], [2.0]], device=device) * (rank + 1)
    (fabric.all_gather(wanted, sync_grads=True) * weights).sum().backward()
    values = {
        "gathered": fabric.all_gather(own),
        "scalars": fabric.all_gather(torch.tensor(rank, device=device)),
        "truths": fabric.all_gather(torch.tensor([rank == 1], device=device)),
        "on the CPU": fabric.all_gather(own.cpu()),
        "gradient": wanted.grad,
        "sum": fabric.all_reduce(own, reduce_op="sum"),
        "from rank 1": fabric.broadcast(own, src=1),
        "over the group": fabric.strategy.all_gather(own, group=torch.distributed.group.WORLD),
    }
    told = {name: value.tolist() for name, value in values.items()}
    fabric.barrier()
    return {**told, "device": str(values["gathered"].device)}


def train(**options):
    module = Measured()
    trainer = Trainer(**QUIET, max_epochs=1, **options)
    share = trainer.world_size
    trainer.fit(module, *[DataLoader(make_data(), batch_size=16 // share) for _ in range(2)])
    return module, trainer


def main():
    fabric = Fabric(accelerator="xla", devices=WORLD_SIZE, strategy=Replicated())
    fabric.launch()
    told = fabric_told(fabric)
    fabric.teardown()
    module, trainer = train(accelerator="xla", devices=WORLD_SIZE, strategy=Replicated())
    told["measured"], told["num_seen"] = (
        float(trainer.callback_metrics["measured"]),
        module.num_seen,
    )
    told["gathered shape"], told["left"] = (
        list(module.gathered[-1].shape),
        module.measured.dist_sync_fn is None,
    )
    weights = module.state_dict()["middle.weight"]
    fabric = Fabric(accelerator="xla", devices=WORLD_SIZE, strategy=Unreplicated())
    told["unreplicated"] = refusal(ConfigurationError, fabric.launch)
    fabric.strategy.teardown()
    if trainer.is_global_zero:
        module, on_one = train(accelerator="cpu", devices=1)
        told["measured on one"], told["num_seen on one"] = (
            float(on_one.callback_metrics["measured"]),
            module.num_seen,
        )
        told["furthest"] = float((weights - module.state_dict()["middle.weight"]).abs().max())
        print(json.dumps(told))


if __name__ == "__main__":
    main()
