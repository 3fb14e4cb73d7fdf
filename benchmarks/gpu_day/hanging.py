"""A rank that hangs, and is named."""

import os
import subprocess
import sys
import time

import torch

from gpu_day.setting import DAY, KIND, SMALL, Skip, expect, folder

HANG = """
import pickle, sys, time
from datetime import timedelta
import torch
from core import Fabric
from core.watch import WatchdogOptions

def recorded():
    import torch._C._distributed_c10d as c10d
    dumps = [(name, getattr(c10d, name, None)) for name in ("_dump_nccl_trace", "_dump_fr_trace")]
    return {name: len(pickle.loads(dump()).get("entries", [])) for name, dump in dumps if dump}

def train(fabric):
    fabric.all_reduce(torch.ones(2, device=fabric.device))
    if fabric.global_rank == 1:
        time.sleep(600)
    backend = torch.distributed.group.WORLD._get_backend(fabric.device)
    print("RECORDED", type(backend).__name__, recorded(), flush=True)
    fabric.all_reduce(torch.ones(2, device=fabric.device))
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()

if __name__ == "__main__":
    watch = WatchdogOptions(limit=timedelta(seconds=3), end_after=timedelta(seconds=6), grace=timedelta(seconds=5))
    Fabric(accelerator=sys.argv[1], devices=2, strategy="ddp_spawn", watch=watch).launch(train)
"""


def hang(variables):
    """A rank that sleeps while the other waits for it in a collective."""
    if KIND != "cpu" and torch.accelerator.device_count() < 2:
        raise Skip("one device: no rank waits for another")
    with folder() as path:
        path.joinpath("hang.py").write_text(HANG)
        began = time.perf_counter()
        command = [sys.executable, path / "hang.py", KIND]
        limit_s = DAY["limit_s"] - 5
        done = subprocess.run(
            command,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    expect(done.returncode != 0, "a run of which one rank hangs has ended well")
    found = next((line for line in done.stderr.splitlines() if "HangError" in line), "")
    expect("ank 1" in found, f"rank 1 isn't named: {done.stderr[-800:]}")
    recorded = next((line for line in done.stdout.splitlines() if line.startswith("RECORDED")), "")
    return {
        "told after, s": round(time.perf_counter() - began, 1),
        "told": found,
        "backend, recorders": recorded[9:],
    }


def hang_legacy():
    """The same on the engine that `nccl` was before torch 2.15."""
    if SMALL or not hasattr(torch.distributed, "ProcessGroupNCCL2"):
        raise Skip("this torch has one engine of NCCL, or there is no GPU")
    return hang({"TORCH_DIST_USE_NCCL2": "0"})
