"""Trains in Monarch's actors until a rank, or the program, is ended. python ended_program.py FOLDER
HOW

How: "interrupt" trains on; "raise", "leave", "exit" and "kill" end rank 1 after three steps.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, WorkerError

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Ends(Callback):
    """Notes where each rank is, and how it ends."""

    def __init__(self, folder, how):
        self.folder, self.how = folder, how

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        (self.folder / f"pid-{trainer.global_rank}").write_text(str(os.getpid()))
        if trainer.global_rank != 1 or trainer.global_step != 3:
            return
        if self.how == "raise":
            raise ValueError("the user's hook fails")
        if self.how == "leave":
            sys.exit(0)
        if self.how == "exit":
            os._exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_exception(self, trainer, module, exception):
        (self.folder / f"step-{trainer.global_rank}").write_text(str(trainer.global_step))


def main():
    folder, how = Path(sys.argv[1]), sys.argv[2]
    options = {
        "devices": 2,
        "plugins": "monarch",
        "max_epochs": -1,
        "callbacks": [Ends(folder, how)],
        **QUIET,
    }
    trainer = Trainer(strategy="ddp", accelerator="cpu", **options)
    try:
        trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))
    except WorkerError as error:
        told = {
            "rank": error.rank,
            "exit_code": error.exit_code,
            "text": str(error),
            "trace": error.worker_traceback,
        }
        print("TOLD", json.dumps(told))


if __name__ == "__main__":
    main()
