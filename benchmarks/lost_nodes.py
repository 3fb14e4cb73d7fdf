"""A node of torchrun's is lost with its ranks and its memory, another one joins, and the run stays
the same run.

    python benchmarks/lost_nodes.py fsdp hsdp zero3

Each trains on two nodes, which are agents of this machine with a memory of their own, and keeps
nothing on disk. After step 5 one is killed with all that it has; the other one goes on alone from
its own memory; then a third one joins, which has nothing. At the end the weights are compared with
those of an undisturbed run on one node.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "cluster")]
from test_elastic_agents import LIMIT_S, Nodes  # noqa: E402

NUM_RANKS = {"hsdp": 2}
"""Ranks of a node: with HSDP, which has shards on each and copies between them."""


def weights_of(nodes):
    """All parameters, whole."""
    whole = nodes.folder / "whole.pt"
    command = [
        sys.executable,
        "-m",
        "core",
        "checkpoint",
        "consolidate",
        nodes.folder / "whole",
        whole,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return torch.load(whole, weights_only=True)["model"]


def finish(nodes, *numbers):
    for number in numbers:
        output, _ = nodes.agents[number].communicate(timeout=2 * LIMIT_S)
        assert nodes.agents[number].returncode == 0, output


def lose_a_node(strategy, folder, memories):
    num_ranks = NUM_RANKS.get(strategy, 1)
    (folder / "undisturbed").mkdir()
    (folder / "disturbed").mkdir()
    undisturbed = Nodes(folder / "undisturbed", 0, strategy, num_ranks)
    undisturbed.start(CORE_MEMORY_FOLDER=str(memories[3]))
    finish(undisturbed, 0)

    disturbed = Nodes(folder / "disturbed", 0.3, strategy, num_ranks)
    try:
        for memory in memories[:2]:
            disturbed.start(CORE_MEMORY_FOLDER=str(memory))
        disturbed.await_steps(5, world_size=2 * num_ranks)
        disturbed.kill(1)
        shutil.rmtree(memories[1])
        lost_after = max(
            int(line.split()[1]) for line in disturbed.lines() if line.startswith("does")
        )
        alone = disturbed.await_steps(lost_after + 2, world_size=num_ranks)
        disturbed.set_pace(2)
        disturbed.start(CORE_MEMORY_FOLDER=str(memories[2]))
        disturbed.await_steps(alone + 1, world_size=2 * num_ranks)
        disturbed.set_pace(0)
        finish(disturbed, 0, 2)
    finally:
        disturbed.end()
    begun = sorted(
        {
            tuple(map(int, line.split()[1::2]))
            for line in disturbed.lines()
            if line.startswith("begins")
        }
    )
    expected, found = weights_of(undisturbed), weights_of(disturbed)
    furthest = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    left = [path for memory in memories if memory.exists() for path in memory.iterdir()]
    return lost_after, begun, furthest, found[next(iter(found))].dtype, left


def main():
    for strategy in sys.argv[1:]:
        began_s = time.monotonic()
        memories = [Path(tempfile.mkdtemp(dir="/dev/shm")) for _ in range(4)]
        try:
            with tempfile.TemporaryDirectory() as folder:
                lost_after, begun, furthest, dtype, left = lose_a_node(
                    strategy, Path(folder), memories
                )
        finally:
            for memory in memories:
                shutil.rmtree(memory, ignore_errors=True)
        places = ", ".join(f"at step {step} on {num_ranks} ranks" for step, num_ranks in begun)
        print(
            f"{strategy}: a node was lost after step {lost_after}; begun {places}; weights of "
            f"{dtype} differ by ",
            end="",
        )
        print(
            f"{furthest:.1e}; left in memory: {left or 'nothing'}; "
            f"{time.monotonic() - began_s:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
