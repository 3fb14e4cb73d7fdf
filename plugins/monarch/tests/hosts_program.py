"""Trains on two hosts of Monarch, which are processes of this machine, and prints as JSON what came
of it.
"""

import json
import os

import torch
from ended_program import QUIET, Net
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, LaunchError, Trainer
from core_monarch import MonarchLauncher, library


class Places(Callback):
    """Notes where the ranks run."""

    def __init__(self):
        self.places = []

    def on_train_start(self, trainer, module):
        mine = [
            trainer.global_rank,
            trainer.local_rank,
            trainer.strategy.node_rank,
            os.getppid(),
            os.environ["MINE"],
        ]
        self.places = trainer.strategy.gather_objects(mine) or []

    def state_dict(self):
        return {"places": self.places}

    def load_state_dict(self, state):
        self.places = state["places"]


def fit(plugins, devices, num_nodes):
    torch.manual_seed(0)
    net, places = Net(), Places()
    options = {"strategy": "ddp", "plugins": plugins} if plugins else {}
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        num_nodes=num_nodes,
        max_epochs=2,
        callbacks=[places],
        **options,
        **QUIET,
    )
    data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    trainer.fit(net, DataLoader(data, batch_size=16 // trainer.world_size))
    return torch.cat([each.detach().flatten() for each in net.parameters()]).tolist(), places.places


def main():
    os.environ["MINE"] = "here"
    job = library.load("monarch.job").ProcessJob({"trainers": 2})
    try:
        launcher = MonarchLauncher(job.state(cached_path=None).trainers, env={"MINE": "there"})
        weights, places = fit([launcher], 2, 2)
        try:
            fit([launcher], 2, 1)
        except LaunchError as error:
            refused = str(error)
    finally:
        job.kill()
    alone, _ = fit(None, 1, 1)
    told = {"weights": weights, "alone": alone, "places": places, "refused": refused}
    print("TOLD", json.dumps(told))


if __name__ == "__main__":
    main()
