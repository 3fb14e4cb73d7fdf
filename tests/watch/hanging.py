"""A program with one rank that hangs, or is merely slow: `hanging.py HOW STRATEGY LAUNCHER LIMIT_S`.

LAUNCHER is `script`, `spawn`, or who has started it, such as `torchrun`. Rank 1 is the one; `stopped-0` stops rank 0.
"""

import gc
import os
import signal
import sys
import time
from datetime import timedelta

import torch

from core import Fabric, Watch

NUM_STEPS, STEP, PAUSE_S = 60, 30, 0.08  # the watch has seen several steps, a look a second, before one hangs


def hang(how, fabric, model):
    """The act of rank 1 at a step, instead of going on."""
    if how == "asleep":
        time.sleep(600)
    elif how == "spinning":
        while True:
            pass
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "extra":
        fabric.barrier()
    elif how == "fewer":
        fabric.barrier("all steps are done")


def be_unequal(how, fabric, hangs):
    """The calls in which rank 1 isn't like the others."""
    if how == "shapes":
        fabric.all_reduce(torch.ones(40 if hangs else 3))
    elif how == "kinds":
        fabric.all_gather(torch.ones(3)) if hangs else fabric.all_reduce(torch.ones(3))
    elif how == "skips" and not hangs:
        fabric.all_reduce(torch.ones(3))
    elif how == "skips_barrier" and not hangs:
        fabric.barrier()


def be_slow(how, fabric, model):
    """An act of a healthy rank that may last longer than the limit."""
    rank = fabric.global_rank
    ends_s = time.monotonic() + 2.5 * LIMIT_S
    if how == "computes" and rank == 1:
        while time.monotonic() < ends_s:
            torch.ones(200, 200) @ torch.ones(200, 200)
    elif how == "collects" and rank == 1:
        rubbish = [[number] for number in range(200_000)]
        while time.monotonic() < ends_s:
            gc.collect()
        del rubbish
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
        time.sleep(2.5 * LIMIT_S * (self.rank == 0))
        return {"slow": 1}


def train(fabric):
    if STRATEGY == "deepspeed":
        torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    hangs = fabric.global_rank == HANGS
    for step in range(NUM_STEPS):
        loss = model(torch.ones(2, 4)).sum()
        if step == STEP:
            hang(HOW, fabric, model) if hangs else None
            be_unequal(HOW, fabric, hangs)
            be_slow(HOW, fabric, model)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            fabric.all_reduce(torch.ones(3))
        time.sleep(PAUSE_S)
    if fabric.is_global_zero:
        print("done", flush=True)


HOW, STRATEGY, LAUNCHER, LIMIT_S = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
HOW, _, hanging = HOW.partition("-")
HANGS = int(hanging or 1)

if __name__ == "__main__":
    own_rank = os.environ.get("RANK", "0")
    if HOW == "late" and own_rank == str(HANGS):
        time.sleep(90)
    if HOW == "differs" and own_rank == str(HANGS):
        STRATEGY = "fsdp"
    limits = Watch(limit=timedelta(seconds=LIMIT_S), grace=timedelta(seconds=6), folder=sys.argv[5])
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
