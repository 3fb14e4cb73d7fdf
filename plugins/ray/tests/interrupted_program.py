"""Trains on a local Ray cluster until a signal comes. python interrupted_program.py FOLDER"""

import os
import sys
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}

from ray_program import QUIET, Net, loader

from core import Callback, Trainer


class Tells(Callback):
    """Notes where each rank is, and how it ends."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        (self.folder / f"pid-{trainer.global_rank}").write_text(str(os.getpid()))

    def on_exception(self, trainer, module, exception):
        (self.folder / f"step-{trainer.global_rank}").write_text(str(trainer.global_step))


def main():
    folder = Path(sys.argv[1])
    options = {
        "max_epochs": -1,
        "callbacks": [Tells(folder)],
        "enable_checkpointing": False,
        **QUIET,
    }
    trainer = Trainer(strategy="ddp", devices=2, plugins="ray", **options)
    trainer.fit(Net(), loader(4))


if __name__ == "__main__":
    main()
