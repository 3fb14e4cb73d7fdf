"""A program with one rank that hangs, or is merely slow:
`hanging.py HOW STRATEGY LAUNCHER LIMIT_S FOLDER [END_S]`.

LAUNCHER is `script`, `spawn`, `fork` (with the Trainer), or who has started it, such as `torchrun`.
Rank 1 is the one; `stopped-0` stops rank 0.
HOW may end with a place, as in `asleep@first`: a step of the loop below, or a stage of the Trainer,
`asleep@teardown`.
"""

import ctypes
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch

from core import Fabric, Module, Trainer, WatchdogOptions

STEPS = {"first": 0, "fourth": 3, "usual": 30, "late": 200}
PAUSE_S = 0.04


def hang(how, fabric, model):
    """The act of rank 1 at a step, instead of going on."""
    signal.alarm(600)  # nothing is left, whatever holds Python's lock
    if how == "asleep":
        time.sleep(600)
    elif how == "spinning":
        while True:
            pass
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "regex":
        re.match(r"(a+)+$", "a" * 60 + "b")
    elif how == "native":
        ctypes.PyDLL(None).sleep(600)
    elif how == "extra":
        fabric.barrier()
    elif how == "alone":  # written at the end of the epoch, where this line is on no stack
        model.trainer.save_checkpoint(os.path.join(sys.argv[5], "alone"))
    elif how == "fewer":
        fabric.barrier("all steps are done")


def be_slow(how, fabric, model):
    """An act of a healthy rank that lasts longer than a limit: that of telling, for those that do
    nothing.
    """
    rank = fabric.global_rank
    slow_s = 1.5 * END_S
    ends_s = time.monotonic() + slow_s
    if how == "computes" and rank == 1:
        while time.monotonic() < ends_s:
            torch.ones(200, 200) @ torch.ones(200, 200)
    elif how == "collects" and rank == 1:
        rubbish = [[number] for number in range(200_000)]
        while time.monotonic() < ends_s:
            gc.collect()
        del rubbish
    elif how == "pipes" and rank == 1:  # a child of a child works
        source = f"import time; e = time.monotonic() + {slow_s}\nwhile time.monotonic() < e: pass"
        subprocess.run(["sh", "-c", f"{sys.executable} -c '{source}' | cat"], check=True)
    elif how == "compiles" and rank == 1:  # many short children
        while time.monotonic() < ends_s:
            subprocess.run([sys.executable, "-S", "-c", "sum(range(1_000_000))"], check=True)
    elif how == "asks" and rank == 1:  # a database that takes its time
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S + (END_S - LIMIT_S) / 2)
        with theirs:
            try:
                ours.recv(1)
            except TimeoutError:
                ours.close()
    elif how == "saves":  # a disk that takes its time
        fabric.save(os.path.join(sys.argv[5], "slow"), {"model": model, "slow": SlowState(rank)})
    elif how == "validates" and rank == 0:  # the others wait for it in the next step
        with torch.no_grad():
            while time.monotonic() < ends_s:
                model.module(torch.ones(64, 4))


class SlowState:
    def __init__(self, rank):
        self.rank = rank

    def state_dict(self):
        time.sleep((LIMIT_S + (END_S - LIMIT_S) / 2) * (self.rank == 0))
        return {"slow": 1}


def train(fabric):
    if STRATEGY == "deepspeed":
        torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    hangs = fabric.global_rank == HANGS
    at = STEPS[PLACE]
    for step in range(at + 30):
        loss = model(torch.ones(2, 4)).sum()
        if step == at:
            hang(HOW, fabric, model) if hangs else None
            be_slow(HOW, fabric, model)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            fabric.all_reduce(torch.ones(3))
        time.sleep(PAUSE_S)
    if fabric.is_global_zero:
        print("done", flush=True)


class Net(Module):
    """A rank of the Trainer hangs in one of its hooks."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def act(self, place):
        if (
            place == PLACE
            and self.trainer.global_rank == HANGS
            and not self.trainer.sanity_checking
        ):
            hang(HOW, self.trainer.fabric, self)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        self.act("validation")
        self.log("val_loss", self.layer(batch).sum(), sync_dist=True)

    def on_train_epoch_end(self):
        self.act("epoch_end")

    def on_save_checkpoint(self, checkpoint):
        self.act("checkpoint")

    def on_fit_end(self):
        self.act("on_fit_end")

    def teardown(self, stage):
        self.act("teardown")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(watch):
    data = torch.utils.data.DataLoader(torch.ones(8, 4))
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=f"{STRATEGY}_{LAUNCHER}" if LAUNCHER in ("spawn", "fork") else STRATEGY,
        max_epochs=2,
        watch=watch,
        default_root_dir=sys.argv[5],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), data, data)


HOW, STRATEGY, LAUNCHER, LIMIT_S = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
HOW, _, PLACE = HOW.partition("@")
HOW, _, hanging = HOW.partition("-")
PLACE, HANGS = PLACE or "usual", int(hanging or 1)
END_S = float((*sys.argv, 4 * LIMIT_S)[6])

if __name__ == "__main__":
    own_rank = os.environ.get("RANK", "0")
    if HOW == "late" and own_rank == str(HANGS):
        time.sleep(90)
    if HOW == "differs" and own_rank == str(HANGS):
        STRATEGY = "fsdp"
    limits = WatchdogOptions(
        limit=timedelta(seconds=LIMIT_S),
        end_after=timedelta(seconds=END_S),
        grace=timedelta(seconds=6),
        folder=sys.argv[5],
    )
    if PLACE not in STEPS:
        fit(limits)
        raise SystemExit
    if STRATEGY == "store":
        from store_strategy import StoreStrategy

        STRATEGY = StoreStrategy()
    plugins = ["spawn"] if LAUNCHER == "spawn" else None
    fabric = Fabric(accelerator="cpu", devices=2, strategy=STRATEGY, plugins=plugins, watch=limits)
    if LAUNCHER == "spawn":
        fabric.launch(train)
    else:
        fabric.launch()
        train(fabric)
