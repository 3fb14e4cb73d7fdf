"""Forked copies of a process, which have none of its threads."""

import sys

import pytest

from core_testing import programs

COPY = """
process = multiprocessing.get_context("fork").Process(target=collect)
process.start()
process.join(20)
process.kill()
print(process.exitcode)
"""
RANK = """
launcher = MultiprocessingLauncher("fork")
launcher.connect(cluster_environment=LocalEnvironment(), num_processes=1, num_nodes=1)
print(launcher.launch(collect))
"""


@pytest.mark.parametrize(
    ("rest", "expected"), [(COPY, "0\n"), (RANK, "collected\n")], ids=["copy", "rank"]
)
def test_a_fork_does_not_destroy_the_stores_of_its_parent(rest, expected):
    beginning = """
import gc, multiprocessing, sys, threading, time
from torch.distributed import TCPStore
from core.launch import MultiprocessingLauncher
from core.cluster import LocalEnvironment
from core.strategies import ParallelStrategy

def leave_a_store():
    held = [TCPStore("localhost", 0, is_master=True, wait_for_workers=False)]
    held.append(held)

def collect():
    for _ in range(4):  # in the places of those that aren't there
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    gc.collect()
    return "collected"

gc.disable()
leave_a_store()
"""
    done = programs.run([sys.executable, "-c", beginning + rest])
    assert done.stdout == expected, done.stderr
