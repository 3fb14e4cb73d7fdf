"""A program that any scheduler can start."""

import os
import subprocess
import sys

import pytest

from core_testing.waiting import slowness
from support.slurm_cluster import slurm

__all__ = ["slurm"]

PROGRAM = '''
"""Finds out who has started it, and adds up the ranks."""
import os, sys

import torch
import torch.distributed as dist

from core.cluster import *
from core.contract import Found

found = {}
for kind in (LocalEnvironment, TorchElasticEnvironment, SLURMEnvironment, MPIEnvironment):
    if isinstance(detection := kind.detect(), Found):
        found[kind] = detection.priority
environment = max(found, key=found.get)()
rank, world_size = environment.global_rank(), environment.world_size()
if environment.creates_processes:
    environment.validate(num_devices=int(sys.argv[1]), num_nodes=int(sys.argv[2]))
    store = dist.TCPStore(
        environment.main_address,
        environment.main_port,
        is_master=not environment.store_is_hosted and rank == 0,
        wait_for_workers=False,
    )
    store = dist.PrefixStore(f"restart-{environment.restart_count}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1])
    for step in range(3):
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        if "--die-once" in sys.argv and environment.restart_count == 0 and rank == 1 and step == 1:
            os.kill(os.getpid(), 9)
    dist.barrier()
    dist.destroy_process_group()
else:
    total = torch.tensor([0])
line = f"{type(environment).__name__} rank {rank} of {world_size} node {environment.node_rank()} local "
line += f"{environment.local_rank()} restart {environment.restart_count} sum {total.item()}\\n"
os.write(1, line.encode())
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def run(tmp_path):
    """`run(command, **variables)` runs it to the end and returns its sorted output lines."""

    def run(*command, **variables):
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
        done = subprocess.run(
            [str(part) for part in command],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150 * slowness(),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(line for line in done.stdout.splitlines() if "Environment rank" in line)

    return run


@pytest.fixture
def torchrun():
    return [sys.executable, "-m", "torch.distributed.run"]
