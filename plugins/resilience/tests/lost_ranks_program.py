"""A program for `core go-on`: trains, and kills this process where the plan says so."""

import json
import os
import resource
import signal
import sys
import time
from datetime import timedelta

import torch
from torch.utils.data import DataLoader, Dataset

from core import Module, Trainer, WatchdogOptions, seed_everything
from core.callbacks import Callback, Goodput, MemoryCheckpoint
from core_resilience import microbatch_size

STRATEGY, STEPS = sys.argv[1], int(sys.argv[2])
ROUND, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
PLAN = json.loads(os.environ["PLAN"])
OWN = PLAN[ROUND] if len(PLAN) > ROUND else {"phase": "", "step": 0, "rank": -1}
FAULT, MOST_SAMPLES = os.environ.get("FAULT", "kill"), int(os.environ.get("MOST_SAMPLES", "12"))
GLOBAL_BATCH, NUM_SAMPLES = 12, 96
trainer: Trainer


def allocate(num_samples):
    """Ask for more memory than there may be, if the batch is too large, on the last rank."""
    is_last = int(os.environ["WORLD_SIZE"]) - 1 == RANK
    if FAULT == "memory" and num_samples > MOST_SAMPLES and is_last and trainer.global_step >= 3:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (2**36, limits[1]))
        try:
            torch.ones(2**37, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


def phase(name):
    """Die here, if this is the phase, the rank and a step of the plan."""
    if OWN["phase"] == name and OWN["rank"] == RANK:
        if (
            name not in ("meet", "set up")
            and trainer.global_step < OWN["step"]
            and name != "validate"
        ):
            return
        if FAULT == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)


class Samples(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(NUM_SAMPLES, 8, dtype=torch.double, generator=generator)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        phase("data")
        return index, self.inputs[index]


class Net(Module):
    def __init__(self):
        super().__init__()
        norm = torch.nn.BatchNorm1d(16) if "NORM" in os.environ else torch.nn.Identity()
        layers = torch.nn.Linear(8, 16), norm, torch.nn.ReLU(), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers).double()
        self.times_seen = torch.nn.Linear(1, NUM_SAMPLES, bias=False).double()
        torch.nn.init.zeros_(self.times_seen.weight)

    def forward(self, index, inputs):
        seen = self.times_seen(torch.ones(1, dtype=torch.double))[index]
        return (self.layers(inputs)[:, 0] - inputs.sum(-1)).square() + seen - seen.detach()

    def training_step(self, batch):
        phase("forward")
        allocate(len(batch[0]))
        loss = self(*batch).mean()
        loss.register_hook(lambda gradient: phase("backward"))
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        phase("validate")
        self.log("val_loss", self(*batch).mean())

    def setup(self, stage):
        phase("set up")

    def on_save_checkpoint(self, checkpoint):
        phase("save")

    def configure_optimizers(self):
        counts = {"params": self.times_seen.parameters(), "momentum": 0.0, "lr": 1.0}
        optimizer = torch.optim.SGD(
            [{"params": self.layers.parameters()}, counts], lr=0.01, momentum=0.9
        )
        optimizer.register_step_pre_hook(lambda *_: phase("optimizer"))
        return optimizer


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if RANK == 0:
            with open("steps", "a") as file:
                file.write("x")


phase("meet")
seed_everything(1)
goodput = Goodput(verbose=False)
net = Net()
if STRATEGY == "parallel":
    from core_parallel import ParallelStrategy

    strategy = ParallelStrategy(shard=2)
else:
    strategy = STRATEGY
trainer = Trainer(
    accelerator="cpu",
    strategy=strategy,
    global_batch_size=GLOBAL_BATCH,
    max_steps=STEPS,
    check_val_every_n_epoch=1,
    callbacks=[MemoryCheckpoint(), goodput, Steps()],
    enable_progress_bar=False,
    enable_model_summary=False,
    watch=WatchdogOptions(limit=timedelta(seconds=3), end_after=timedelta(seconds=3))
    if FAULT == "hang"
    else None,
)
batch_size = microbatch_size(6) if FAULT == "memory" else 1
trainer.fit(
    net,
    DataLoader(Samples(), batch_size=batch_size, shuffle=True),
    DataLoader(Samples(), batch_size=48),
    ckpt_path="last",
)
weights = [
    (each.full_tensor() if hasattr(each, "full_tensor") else each).detach().flatten()
    for each in net.parameters()
]
phase("end")
if RANK == 0:
    torch.save(torch.cat(weights), "weights.pt")
    with open("goodput.json", "w") as file:
        json.dump(goodput.seconds, file)
