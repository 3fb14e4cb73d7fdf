"""Trains on one of two hosts, and tells what it saw; host 0 then on one CPU.

python hosts_program.py FOLDER, with MASTER_ADDR, MASTER_PORT and NODE_RANK.
"""

import json
import sys
from pathlib import Path

import torch
import torchmetrics
import two_hosts
from lessons import QUIET, Net, Saving, furthest, make_data, refusal
from torch.utils.data import DataLoader

from core import ConfigurationError, Fabric, ModuleError, Trainer
from core.loggers import CSVLogger

HOSTS = {"accelerator": "xla", "devices": two_hosts.NUM_DEVICES, "num_nodes": two_hosts.NUM_HOSTS}


class Measured(Net):
    """Draws noise, logs sums and a metric, and notes what it sees."""

    def __init__(self):
        super().__init__()
        self.seen, self.noise, self.num_samples = torchmetrics.CatMetric(), [], 0

    def training_step(self, batch, batch_idx):
        self.noise.append(torch.rand(()))
        self.num_samples += len(batch[0])
        self.log(
            "summed", batch[0].sum(), on_step=False, on_epoch=True, reduce_fx="sum", sync_dist=True
        )
        self.log(
            "now", batch[0].sum(), on_step=True, on_epoch=False, reduce_fx="sum", sync_dist=True
        )
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.seen.update(batch[1].sum(1))

    def on_validation_epoch_end(self):
        self.num_seen = len(self.seen.compute())
        self.seen.reset()

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def train(folder, ckpt_path=None, seed=0, **options):
    """Two epochs of shuffled batches, with what a run has when nothing is turned off."""
    module = Measured()
    with torch.no_grad():
        module.middle.bias += seed  # the weights of host 0 are everyone's
    torch.manual_seed(seed)
    shown = {
        **QUIET,
        "enable_checkpointing": True,
        "logger": CSVLogger(folder),
        "log_every_n_steps": 1,
    }
    saving = Saving(folder / "saved", at=12)
    trainer = Trainer(
        **shown,
        callbacks=[saving],
        default_root_dir=folder,
        max_epochs=2,
        gradient_clip_val=0.5,
        **options,
    )
    loaders = [DataLoader(make_data(), batch_size=16, shuffle=not number) for number in range(2)]
    trainer.fit(module, *loaders, ckpt_path=ckpt_path)
    return module, trainer


def told_of(module, trainer):
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {
        "losses": [float(loss) for loss in module.losses],
        "noise": [float(noise) for noise in module.noise],
        "samples": module.num_samples,
        "seen": module.num_seen,
        "step": trainer.global_step,
        "values": values,
    }


def collectives(fabric):
    rank, device = fabric.global_rank, fabric.device
    common = torch.arange(4.0, device=device, requires_grad=True)
    fabric.all_gather(common, sync_grads=True).mul(
        torch.tensor([[1.0], [2.0]], device=device)
    ).sum().backward()
    own = torch.tensor(float(rank + 1), device=device)
    return {
        "world": [
            rank,
            fabric.world_size,
            fabric.strategy.num_devices,
            fabric.strategy.data_parallel_size,
        ],
        "sum": fabric.all_reduce(own, reduce_op="sum").item(),
        "gathered": fabric.all_gather(own).tolist(),
        "gradient": common.grad.tolist(),
        "any": fabric.strategy.reduce_boolean_decision(rank == 1, all=False),
        "from 1": fabric.broadcast({"own": own, "rank": rank}, src=1)["own"].item(),
        "objects": fabric.strategy.gather_objects((rank, own)) is not None,
        "alone": refusal(ConfigurationError, lambda: fabric.broadcast(own if rank == 0 else None)),
    }


def unlike_batches(fabric):
    own = torch.arange(8.0) + fabric.global_rank
    return refusal(
        ConfigurationError,
        lambda: next(iter(fabric.setup_dataloaders(DataLoader(own, batch_size=4)))),
    )


def main():
    folder, told = Path(sys.argv[1]), {}
    two_hosts.install()
    fabric = Fabric(**HOSTS, strategy="xla_spmd")
    fabric.launch()
    rank = fabric.global_rank
    told["collectives"], told["unlike batches"] = collectives(fabric), unlike_batches(fabric)
    told["unlike modules"] = refusal(
        ModuleError, lambda: fabric.setup(torch.nn.Linear(2, 2 + rank))
    )
    fabric.teardown()
    module, trainer = train(folder, seed=rank, strategy="xla_fsdp", **HOSTS)
    told["hosts"] = told_of(module, trainer)
    told["predictions"] = sum(
        len(part) for part in trainer.predict(module, DataLoader(make_data(), batch_size=16))
    )
    told["graphs"] = two_hosts.num_graphs()
    if rank == 0:
        one = {"accelerator": "cpu", "devices": 1}
        told["one"] = told_of(*train(folder / "one", **one))
        resumed = train(folder / "one", ckpt_path=folder / "saved", **one)[0]
        told["resumed"] = furthest(told_of(resumed, trainer)["losses"], told["one"]["losses"][12:])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
