"""Trains with the default progress bar, on whatever standard output is, and prints in between."""

import sys

from core import Trainer
from support.tiny import Tiny, loader


class Talking(Tiny):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            self.trainer.print(f"step {self.global_step} says {'hello ' * 30}end")
        return super().training_step(batch, batch_idx)


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        default_root_dir=sys.argv[1],
        num_sanity_val_steps=1,
    )
    trainer.fit(Talking([0.5, 0.25]), loader(), loader())
    trainer.test(Talking(), loader())
