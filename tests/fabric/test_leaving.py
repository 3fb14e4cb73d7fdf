"""How ranks come into a process group and out of it when something is wrong: no rank waits for what
won't come.
"""

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from core import Fabric
from core.launch import known_rank
from core.strategies import ParallelStrategy
from core_testing import programs
from fabric import queued_group  # registers the backend


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A function that returns what the group has told; variables that a rank's error leaves end
    with the test.
    """
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.setenv(name, "of before")
        monkeypatch.delenv(name)
    file = tmp_path / "told.txt"
    monkeypatch.setenv("QUEUED_GROUP", str(file))
    return lambda: file.read_text().splitlines()


def make_fabric(**options):
    strategy = ParallelStrategy(process_group_backend="queued", **options)
    return Fabric(strategy=strategy, accelerator="cpu", devices=1)


def test_an_error_does_not_wait_for_what_other_ranks_never_join(told):
    def fail(fabric):
        try:
            fabric.launch()
            raise ValueError("my own")
        finally:
            fabric.teardown()

    with pytest.raises(ValueError, match="my own"):
        fail(make_fabric())
    assert told()[1:] == ["aborts"]


def test_a_run_that_ends_well_finishes_what_it_began(told):
    fabric = make_fabric()
    fabric.launch()
    fabric.teardown()
    assert told()[1:] == ["waits for the others"]
    assert known_rank() is None, "one process alone is no rank of several, whatever it runs later"


@pytest.mark.slow
def test_an_error_that_ends_a_program_does_not_wait_either(told):
    """In an interpreter of its own: how that ends is the point."""
    program = """
import queued_group
from core import Fabric
from core.strategies import ParallelStrategy

Fabric(strategy=ParallelStrategy(process_group_backend="queued"), accelerator="cpu", devices=1).launch()
1 / 0
"""
    environment = os.environ | {"PYTHONPATH": os.path.dirname(queued_group.__file__)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ZeroDivisionError" in done.stderr, done.stderr
    assert told()[1:] == ["aborts"]


def test_torch_has_the_timeout_that_the_user_gave(told):
    for options in ({}, {"timeout": None}, {"timeout": timedelta(seconds=7)}):
        fabric = make_fabric(**options)
        fabric.launch()
        fabric.teardown()
    assert [line for line in told() if line.startswith("timeout")] == ["timeout 1800 s"] * 2 + [
        "timeout 7 s"
    ]


def test_nccl_has_the_timeout_of_torch(told, monkeypatch):
    """Such a torch isn't here: what it is asked for is looked at."""
    asked = []
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda *_, timeout, **__: asked.append(timeout)
    )
    make_fabric().launch()
    assert asked == [None]  # 10 minutes for NCCL, 30 for others


def test_a_device_that_cannot_be_used_is_told_before_any_rank_connects(tmp_path):
    broken_device = """
import os
import torch.distributed as dist
from core import DeviceError, Fabric, WorkerError
from core.accelerators import CPUAccelerator

real = dist.init_process_group

def shown(*arguments, **options):
    os.write(1, b"connects\\n")
    return real(*arguments, **options)

dist.init_process_group = shown

class Busy(CPUAccelerator):
    def setup_device(self, device):
        if os.environ["RANK"] == "1":
            raise DeviceError("the device of rank 1 is busy")

try:
    Fabric(strategy="ddp_fork", accelerator=Busy(), devices=2).launch(lambda fabric: None)
except WorkerError as error:
    os.write(1, f"told: {error}\\n".encode())
"""
    script = tmp_path / "program.py"
    script.write_text(broken_device)
    done = programs.run([sys.executable, script], cwd=tmp_path, timeout=120)
    told = "told: Rank 1 failed with core.contract.errors.DeviceError: the device of rank 1 is busy"
    assert done.stdout.startswith(told), done.stdout + done.stderr
