"""A training that goes on wherever torchrun starts it again, on as many ranks as there are.

python elastic_program.py FOLDER [STRATEGY]

STRATEGY is `ddp`, `fsdp`, `hsdp` or `zero3`. Each rank tells in FOLDER/steps-PID where it begins
and what it has done; at the end there are the weights, of `ddp` in one file that rank 0 writes. A
step takes as many seconds as FOLDER/pace says.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import MemoryCheckpoint, ModelCheckpoint

FOLDER = Path(sys.argv[1])
# In the memory of nodes, if they say where that is; else in a folder that all of them have.
IN_MEMORY = "CORE_MEMORY_FOLDER" in os.environ
KEEPER = (
    MemoryCheckpoint() if IN_MEMORY else ModelCheckpoint(FOLDER / "saved", every_n_train_steps=2)
)
STRATEGY = sys.argv[2] if len(sys.argv) > 2 else "ddp"
FORMAT = torch.float32 if STRATEGY == "zero3" else torch.float64
NUM_SAMPLES = 90


def strategy():
    if STRATEGY == "hsdp":
        from core_fsdp import FSDPStrategy

        return FSDPStrategy(sharding_strategy="HYBRID_SHARD")
    return {"zero3": "deepspeed_stage_3"}.get(STRATEGY, STRATEGY)


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(FORMAT)

    def training_step(self, batch):
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


class Teller(Callback):
    def tell(self, trainer, what):
        with (FOLDER / f"steps-{os.getpid()}").open("a") as file:
            file.write(f"{what} {trainer.global_step} of {trainer.world_size}\n")

    def on_train_start(self, trainer, module):
        self.tell(trainer, "begins")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if not trainer.count_unfinished():
            self.tell(trainer, "does")
            time.sleep(float((FOLDER / "pace").read_text()))


def main():
    torch.manual_seed(1)
    inputs = torch.randn(NUM_SAMPLES, 3, dtype=FORMAT, generator=torch.Generator().manual_seed(5))
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy(),
        num_nodes="auto",
        global_batch_size=12,
        max_epochs=4,
        logger=False,
        enable_checkpointing=not IN_MEMORY,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Teller(), KEEPER],
        default_root_dir=FOLDER,
    )
    module = Net()
    trainer.fit(
        module,
        DataLoader(TensorDataset(inputs, inputs.sum(1, True)), 4, shuffle=True),
        ckpt_path="last",
    )
    if STRATEGY != "ddp":
        trainer.save_checkpoint(FOLDER / "whole", weights_only=True)
    elif trainer.is_global_zero:
        torch.save((trainer.global_step, module.state_dict()), FOLDER / "weights")


if __name__ == "__main__":
    main()
