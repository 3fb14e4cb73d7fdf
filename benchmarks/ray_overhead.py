"""The cost of core-ray over two actors that train by hand on Ray: of a step, and of a launch with
its end.

    python benchmarks/ray_overhead.py

As `two_ranks.py` says, but that the ranks are actors on a cluster of this machine, which all
contenders share, and that times of steps are those of rank 0. A launch is from the call to its
result, with one step: the clock's time alone, since most of it is spent in Ray's own processes.
"""

import argparse
import os
import socket
import statistics
import tempfile
import time

import ray
import torch
import torch.distributed as dist
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rich.console import Console
from rich.table import Table
from step_overhead import OFF
from two_ranks import (
    WHERE,
    Batches,
    Contest,
    Group,
    Net,
    Run,
    Stopwatch,
    add_rows,
    measure,
    train_by,
)

from core import Callback, Fabric, Trainer
from core.strategies import DDPStrategy

RANKS = {"devices": 2, "plugins": "ray", **WHERE}


class Own(Batches):
    """A batch of the rank that iterates, wherever the loader was made."""

    def __iter__(self):
        return iter(Batches(self.num_batches))


class Actor:
    """A rank by hand."""

    def place(self) -> tuple[str, int]:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def train(self, rank: int, address: str, port: int, num_steps: int) -> Run:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        module = Net()
        model, optimizer = (
            torch.nn.parallel.DistributedDataParallel(module),
            module.configure_optimizers(),
        )
        watch = Stopwatch()
        for batch in Batches(num_steps):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = watch.stop(module)
        dist.destroy_process_group()
        return found


def by_hand(num_steps: int) -> Run:
    group = placement_group([{"CPU": 2}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=60)
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    actors = [
        ray.remote(Actor).options(num_cpus=1, scheduling_strategy=strategy).remote()
        for _ in range(2)
    ]
    place = ray.get(actors[0].place.remote())
    found, _ = ray.get(
        [actor.train.remote(rank, *place, num_steps) for rank, actor in enumerate(actors)]
    )
    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)
    return found


def in_fabric(num_steps: int) -> Run:
    return Fabric(strategy="ddp", **RANKS).launch(train_by, num_steps)


class Watch(Callback):
    """Rank 0's times, which come back as a callback's state does."""

    found: Run | None = None

    def on_train_start(self, trainer, module):
        self.watch = Stopwatch()

    def on_train_end(self, trainer, module):
        self.found = self.watch.stop(module)

    def state_dict(self):
        return {"found": self.found}

    def load_state_dict(self, state):
        self.found = state["found"]


def in_trainer(num_steps: int) -> Run:
    watch, options = Watch(), {**OFF, **RANKS, "use_distributed_sampler": False}
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            strategy="ddp", max_epochs=1, default_root_dir=root, callbacks=[watch], **options
        )
        trainer.fit(Net(), Own(num_steps))
    return watch.found


class OnRay(Contest):
    """Contenders that make their own ranks."""

    @property
    def runs(self):
        return {"by hand": by_hand, "Fabric": in_fabric, "Trainer": in_trainer}


def launches(contest: Contest, num_rounds: int) -> Table:
    table = Table("a launch", "clock, s", "ratio")
    found: dict[str, list[float]] = {name: [] for name in contest.runs}
    for _ in range(num_rounds):
        for name, run in contest.runs.items():
            began = time.perf_counter()
            run(1)
            found[name].append(time.perf_counter() - began)
    for name, row in found.items():
        ratios = [one / other for one, other in zip(row, found["by hand"], strict=True)]
        table.add_row(name, f"{statistics.median(row):.2f}", f"{statistics.median(ratios):.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    contest = OnRay(
        by_hand, DDPStrategy, Group(lambda: None, lambda: 0, lambda: None, lambda: None)
    )
    table = Table("", "contender", "µs CPU", "µs clock", "CPU, ratio", "clock, ratio")
    before = os.getloadavg()[0]
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR"
    )
    try:
        add_rows(table, "ray", measure(contest, arguments.steps, arguments.rounds))
        for each in (table, launches(contest, arguments.rounds)):
            Console().print(each)
    finally:
        ray.shutdown()
    print(
        f"Load of the machine, which counts this too: {before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after."
    )


if __name__ == "__main__":
    main()
