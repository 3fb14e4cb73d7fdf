"""torchrun's agents come and go, each in the place of a node; the run stays the same run."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from core.strategies.rendezvous.rounds import meet
from core_testing import programs
from core_testing.waiting import slowness, wait_until

PROGRAM = Path(__file__).with_name("elastic_program.py")
LIMIT_S = 150


class Nodes:
    """Agents of one job, in process groups of their own; to kill one takes its workers with it."""

    def __init__(self, folder, step_s, strategy="ddp", num_ranks=1):
        self.folder, self.strategy, self.num_ranks = folder, strategy, num_ranks
        self.set_pace(step_s)
        # The meeting point outlives every agent, as a scheduler's would.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.agents = []

    def start(self, **variables):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4"),
            *("--nproc-per-node", str(self.num_ranks)),
            *(
                "--max-restarts",
                "5",
                "--rdzv-backend",
                "c10d",
                "--rdzv-id",
                "elastic",
                "--monitor-interval",
                "0.2",
            ),
            *(
                "--rdzv-endpoint",
                f"127.0.0.1:{self.store.port}",
                "--local-addr",
                "127.0.0.1",
                "--rdzv-conf",
            ),
            "is_host=0,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
            *(PROGRAM, self.folder, self.strategy),
        ]
        # With the shared store of torch 2.13 an agent that joins later waits in vain for its
        # address.
        environment = (
            os.environ
            | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            | variables
        )
        self.agents.append(programs.start(command, env=environment, merge_errors=True))

    def set_pace(self, step_s):
        (self.folder / "new-pace").write_text(str(step_s))
        (self.folder / "new-pace").rename(self.folder / "pace")

    def lines(self):
        return [
            line for path in self.folder.glob("steps-*") for line in path.read_text().splitlines()
        ]

    def await_steps(self, num_steps, world_size):
        """Wait until the run is so far, on so many ranks."""

        def newest():
            done = [line.split() for line in self.lines()]
            there = [
                int(line[1]) for line in done if line[0] == "does" and int(line[3]) == world_size
            ]
            ended = [agent for agent in self.agents if agent.poll() not in (None, -signal.SIGKILL)]
            assert not ended, ended[0].communicate()[0]
            return max((step for step in there if step >= num_steps), default=0)

        return wait_until(newest, f"step {num_steps} of {world_size} ranks", timeout_s=LIMIT_S)

    def kill(self, number):
        os.killpg(self.agents[number].pid, signal.SIGKILL)
        # torchrun gives each worker a session of its own.
        for path in self.folder.glob("steps-*"):
            pid = int(path.name.partition("-")[2])
            if is_of(pid, self.agents[number].pid):
                os.kill(pid, signal.SIGKILL)
        self.agents[number].wait()

    def end(self):
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGTERM)
                agent.wait(30 * slowness())


def is_of(pid, agent_pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == agent_pid
    except OSError:
        return False


@pytest.fixture
def nodes(tmp_path):
    made = []

    def make(name, step_s):
        folder = tmp_path / name
        folder.mkdir()
        made.append(Nodes(folder, step_s))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.mark.slow
def test_ranks_come_and_go_and_the_run_stays_the_same(nodes):
    undisturbed = nodes("undisturbed", 0)
    undisturbed.start()
    output, _ = undisturbed.agents[0].communicate(timeout=LIMIT_S * slowness())
    assert undisturbed.agents[0].returncode == 0, output
    steps, expected = torch.load(undisturbed.folder / "weights")

    disturbed = nodes("disturbed", 0.2)
    disturbed.start()
    disturbed.start()
    disturbed.await_steps(3, world_size=2)
    disturbed.kill(1)
    alone = disturbed.await_steps(6, world_size=1)
    disturbed.set_pace(2)
    disturbed.start()
    disturbed.await_steps(alone + 1, world_size=2)
    disturbed.set_pace(0)
    for number in (0, 2):
        output, _ = disturbed.agents[number].communicate(timeout=LIMIT_S * slowness())
        assert disturbed.agents[number].returncode == 0, output
    done, weights = torch.load(disturbed.folder / "weights")
    assert done == steps == 32
    for name, weight in weights.items():
        assert (weight - expected[name]).abs().max() < 1e-10
    begun = sorted(line for line in disturbed.lines() if line.startswith("begins"))
    # Alone, and then as two again, it went on from what was saved.
    assert any(line.endswith("of 1") and int(line.split()[1]) >= 2 for line in begun)
    assert any(line.endswith("of 2") and int(line.split()[1]) >= 6 for line in begun)


def test_a_round_is_named_for_its_own_ranks_only():
    """Agents count restarts differently, and ranks that have died leave their questions behind."""
    from concurrent.futures import ThreadPoolExecutor

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.add("core/asked", 2)  # two that died before they were answered

    def come(rank):
        own = TCPStore("127.0.0.1", store.port, is_master=False)
        return meet(own, rank, 3, timedelta(seconds=30))

    names = []
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            [name] = set(pool.map(come, [1, 2, 0]))
        names.append(name)
    assert names[0] != names[1]
