"""One peer, told what to do by JSON; it answers with JSON, one line an event."""

import json
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.strategies import HivemindStrategy
from core_hivemind import AveragingOptions

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
FAST = {
    "matchmaking_time": 2.0,
    "averaging_timeout": 10.0,
    "averager_options": {"request_timeout": 1.0},
    "tracker_options": {
        "min_refresh_period": 0.1,
        "default_refresh_period": 0.1,
        "metadata_expiration": 10.0,
    },
}


class Net(Module):
    def __init__(self, seed, width):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1)
        ).double()
        self.samples = []

    def training_step(self, batch, batch_idx):
        self.samples.append(batch[1].tolist())
        return (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Tells(Callback):
    def __init__(self, told):
        self.told, self.step = told, 0

    def on_fit_start(self, trainer, module):
        tell("here", addresses=trainer.strategy.addresses)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.told.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        time.sleep(self.told.get("pause", 0.05))
        if Path(self.told["stop_at"]).exists():
            trainer.should_stop = True
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        if (part := self.told.get("kills")) and trainer.strategy.num_joint_steps:
            os.kill(getattr(trainer.strategy._swarm._hivemind, part).pid, signal.SIGKILL)
        optimizer = trainer.strategy.optimizers[0]
        floating = [
            one.flatten() for one in module.state_dict().values() if one.is_floating_point()
        ]
        tell(
            "step",
            number=self.step,
            weights=torch.cat(floating).tolist(),
            counted={int(one["step"]) for one in optimizer.state.values()}.pop(),
            rate=optimizer.param_groups[0]["lr"],
            joint=trainer.strategy.num_joint_steps,
            peers=trainer.strategy.num_peers,
        )
        if trainer.strategy.num_joint_steps == self.told.get("joint_steps"):
            os.kill(os.getpid(), signal.SIGKILL)


def tell(event, **values):
    print(json.dumps({"event": event, **values}), flush=True)


def main():
    told = json.loads(sys.argv[1])
    module = Net(told["seed"], told.get("width", 3))
    data = torch.randn(512, 4, generator=torch.Generator().manual_seed(2)).double()
    loader = DataLoader(
        TensorDataset(data, torch.arange(512)), batch_size=8, shuffle=told.get("shuffle", True)
    )
    options = {"run_id": "test", "target_batch_size": 64, **told["options"]}
    options["averaging"] = AveragingOptions(**{**FAST, **options.get("averaging", {})})
    options["peers_timeout"] = timedelta(seconds=told.get("patience_s", 120))
    strategy = HivemindStrategy(**options)
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_steps=told["steps"],
        max_epochs=-1,
        callbacks=[Tells(told)],
        **QUIET,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, loader)
        except Exception as error:
            tell("error", kind=type(error).__name__, text=str(error))
    texts = [str(one.message) for one in caught]
    tell("end", step=trainer.global_step, warnings=texts, samples=module.samples[:3])


if __name__ == "__main__":
    main()
