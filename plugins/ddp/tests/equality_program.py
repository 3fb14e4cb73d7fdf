"""Trains every case of CASES under one strategy and saves losses and weights; `test_equality.py` compares them.

python equality_program.py OUT --strategy ddp --devices 2
"""

import argparse
import os
from dataclasses import dataclass

import torch
import torch._dynamo  # every optimizer imports it when it is made: here once, and not in each forked worker
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Fabric, Module, Trainer

GLOBAL_BATCH_SIZE = 8


@dataclass(frozen=True)
class Case:
    """One way to train, in which all ways to start must agree."""

    accumulate: int = 1
    clip: float | None = None
    shuffle: bool = False
    loop: str = "trainer"


CASES = {
    "plain": Case(),
    "shuffled": Case(shuffle=True),
    "fabric_accumulated": Case(loop="fabric", accumulate=2, clip=0.05),
}


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Recorder(Callback):
    """Losses of all steps, averaged over ranks."""

    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(trainer.strategy.reduce(outputs).item())

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def make_loader(case, data_parallel_size):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 6, generator=generator, dtype=torch.float64)
    y = torch.stack([x.sum(1).sin(), x.prod(1)], dim=1)
    return DataLoader(TensorDataset(x, y), batch_size=GLOBAL_BATCH_SIZE // data_parallel_size, shuffle=case.shuffle)


def train_with_trainer(case, options):
    torch.manual_seed(11)
    module, recorder = Net(), Recorder()
    trainer = Trainer(
        **options,
        precision="64-true",
        max_epochs=2,
        callbacks=recorder,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, make_loader(case, options["devices"]))
    return recorder.losses, module.state_dict()


def fabric_loop(fabric, case, data_parallel_size):
    torch.manual_seed(11)
    module = Net()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    loader = fabric.setup_dataloaders(make_loader(case, data_parallel_size))
    losses = []
    for _ in range(2):
        for batch_idx, (x, y) in enumerate(loader):
            ends_window = (batch_idx + 1) % case.accumulate == 0
            with fabric.no_backward_sync(model, enabled=not ends_window):
                loss = nn.functional.mse_loss(model(x), y)
                fabric.backward(loss / case.accumulate)
            if ends_window:
                if case.clip is not None:
                    fabric.clip_gradients(model, optimizer, max_norm=case.clip)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(fabric.all_reduce(loss.detach()).item())
    return losses, {name: value.detach().cpu() for name, value in module.state_dict().items()}


def train_with_fabric(case, options):
    return Fabric(**options, precision="64-true").launch(fabric_loop, case, options["devices"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--strategy", default="single_device")
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    options = {"strategy": arguments.strategy, "devices": arguments.devices, "accelerator": "cpu"}
    results = {}
    for name, case in CASES.items():
        train = train_with_fabric if case.loop == "fabric" else train_with_trainer
        results[name] = train(case, options)
    # Whoever has started this process has told it its rank; a program that starts alone is the first.
    ranks = ("CORE_GLOBAL_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    if next((os.environ[name] for name in ranks if name in os.environ), "0") == "0":
        torch.save(results, arguments.out)


if __name__ == "__main__":
    main()
