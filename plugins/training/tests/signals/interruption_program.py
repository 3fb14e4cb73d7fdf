"""A training that a test interrupts.

python interruption_program.py FOLDER STRATEGY WHERE

In FOLDER stands what happens on each rank: `pid-R` as soon as it is where it should be interrupted,
and `events-R`. WHERE is one of `steps`, `steps with workers`, `long step`, `validation`, `save`,
`data`, `requeue`.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint, OnExceptionCheckpoint

FOLDER, STRATEGY, WHERE = sys.argv[1:]


def tell(trainer, what):
    with Path(FOLDER, f"events-{trainer.global_rank}").open("a") as file:
        file.write(f"{what}\n")


def reach(rank, where):
    """Be there for a minute, if it is where the interruption should come."""
    path = Path(FOLDER, f"pid-{rank}")
    if where == WHERE and not path.exists():
        path.write_text(str(os.getpid()))
        for _ in range(600):  # a signal that comes just before a long sleep would be heard after it
            time.sleep(0.1)


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch):
        if self.global_step == 5:
            reach(self.global_rank, "long step")
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch):
        reach(self.global_rank, "validation")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Dry(Dataset):
    """After 20 samples, the next one doesn't come."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index >= 20:
            reach(0, "data")
        return (torch.ones(4),)


class Teller(Callback):
    def on_train_start(self, trainer, module):
        tell(trainer, f"begins after step {trainer.global_step}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if WHERE.startswith("steps") or WHERE == "requeue":
            time.sleep(0.02)
            if trainer.global_step >= 5:
                Path(FOLDER, f"pid-{trainer.global_rank}").write_text(str(os.getpid()))

    def on_save_checkpoint(self, trainer, module, checkpoint):
        if trainer.global_step == 6:
            reach(trainer.global_rank, "save")

    def on_exception(self, trainer, module, exception):
        tell(trainer, f"{type(exception).__name__} after step {trainer.global_step}")
        tell(trainer, f"agreed: {getattr(exception, 'is_agreed', False)}")

    def teardown(self, trainer, module, stage):
        tell(trainer, "teardown")


def main():
    trainer = Trainer(
        accelerator="cpu",
        strategy=STRATEGY,
        devices=1 if STRATEGY == "single_device" else 2,
        callbacks=[
            Teller(),
            OnExceptionCheckpoint(Path(FOLDER) / "saved"),
            ModelCheckpoint(Path(FOLDER) / "regular", every_n_train_steps=6, save_top_k=1),
        ],
        logger=False,
        default_root_dir=FOLDER,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=1 if WHERE == "validation" else 1000,
        limit_val_batches=None if WHERE == "validation" else 0,
    )
    # With workers one long epoch: to spawn new ones takes longer on a busy machine than an
    # interrupted rank waits.
    num_samples = {"validation": 40, "steps with workers": 40_000}.get(WHERE, 400)
    data = Dry() if WHERE == "data" else TensorDataset(torch.ones(num_samples, 4))
    loader = DataLoader(
        data, batch_size=2, num_workers=2 if WHERE in ("data", "steps with workers") else 0
    )
    validation = DataLoader(TensorDataset(torch.ones(4, 4)))
    trainer.fit(Net(), loader, validation, ckpt_path="last" if WHERE == "requeue" else None)


if __name__ == "__main__":
    main()
