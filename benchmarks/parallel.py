"""The cost of each dimension of core-parallel in two ranks: messages, bytes, the bubble, and CPU
beside torch alone.

    torchrun --nproc-per-node 2 benchmarks/parallel.py [--steps 4] [--rounds 15] [--only 1F1B tensor]

Messages are counted below torch.distributed, as operations of `c10d`, in a step that hashes no
batch. The bubble is that of the order in which the stages computed in a real step, with one unit of
time for a forward and two for a backward. CPU is that of both ranks together: contenders take turns
in going first, a round is so many steps of each, and a ratio is that of two runs of one round;
beside its median is an interval in which the true one lies in 95 of 100 cases. By hand means
torch's own API: `torch.distributed.pipelining`, `parallelize_module`, `fully_shard`,
`DistributedDataParallel`. Both must reach the same loss. All checks are at their default.

Contests begin after 17 steps. The second table has the CPU of a step that isn't followed, of
following it, as is done in each step, and of hashing its batch, as in every 100th.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from core import Fabric
from core_parallel import MeshParallelStrategy
from core_parallel.profiling.recorder import Span, recording

WORDS, WIDTH, HEADS, LENGTH, BATCH, MICROBATCHES, NUM_BLOCKS = 97, 256, 4, 64, 16, 8, 4
Step = Callable[[], float | None]


class Embed(nn.Module):
    """Words and positions, which come together (batch, length, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x[..., 0]) + self.positions(x[..., 1])


class Block(nn.Module):
    """Causal attention and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        q, k, v = (
            to(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for to in (self.query, self.key, self.value)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


PLAN = {
    **dict.fromkeys(("query", "key", "value", "up"), "colwise"),
    **dict.fromkeys(("out", "down"), "rowwise"),
}


def make_parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Embed(), *(Block() for _ in range(NUM_BLOCKS)), nn.Linear(WIDTH, WORDS)]


def make_batch(is_divided: bool) -> tuple[Tensor, Tensor]:
    """The batch of all ranks, or this rank's half."""
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    words = words.chunk(dist.get_world_size())[dist.get_rank()] if is_divided else words
    positions = torch.arange(LENGTH).expand(len(words), -1)
    return torch.stack([words[:, :-1], positions], dim=2), words[:, 1:]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return loss_of(model(batch[0]), batch[1])


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-3)


# core ---------------------------------------------------------------------------------------------


@dataclass
class Ours:
    """A step by `fabric.step`.

    Attributes:
        strategy: of the mesh.
        step: trains on the batch, and returns its loss.
    """

    strategy: MeshParallelStrategy
    step: Step


def by_core(**options: Any) -> Ours:
    strategy = MeshParallelStrategy(**options)
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=dist.get_world_size())
    fabric.launch()
    module = nn.Sequential(*make_parts())
    model, optimizer = fabric.setup(module, adam(module))
    batch = make_batch(is_divided=strategy.data_parallel_size > 1)

    def step() -> float:
        optimizer.zero_grad()
        loss = fabric.step(model, batch, compute_loss)
        optimizer.step()
        return float(loss)

    return Ours(strategy, step)


# by hand ------------------------------------------------------------------------------------------


def by_hand_in_stages(name: str, numbers: Sequence[int], cuts: Sequence[int]) -> Step:
    parts = make_parts()
    ends = [sum(cuts[: number + 1]) for number in range(len(cuts))]
    own = nn.ModuleDict(
        {str(one): nn.Sequential(*parts[ends[one] - cuts[one] : ends[one]]) for one in numbers}
    )
    stages = [PipelineStage(own[str(one)], one, len(cuts), torch.device("cpu")) for one in numbers]
    make = get_schedule_class(name)
    schedule = make(stages if len(stages) > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    optimizer, (inputs, targets) = adam(own), make_batch(is_divided=False)
    has_first, has_last = 0 in numbers, len(cuts) - 1 in numbers

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        given = {"target": targets, "losses": losses} if has_last else {}
        schedule.step(*([inputs] if has_first else []), return_outputs=False, **given)
        optimizer.step()
        return float(torch.stack(losses).detach().mean()) if has_last else None

    return step


def by_hand(prepare: Callable[[nn.Sequential], nn.Module], is_divided: bool) -> Step:
    model = prepare(nn.Sequential(*make_parts()))
    optimizer, batch = adam(model), make_batch(is_divided)

    def step() -> float:
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def cut_in_tensors(model: nn.Sequential) -> nn.Module:
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[1:-1]:
        parallelize_module(block, mesh, {name: styles[word]() for name, word in PLAN.items()})
    return model


def cut_in_shards(model: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[1:-1]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@dataclass(frozen=True)
class Contest:
    """The options of the strategy, and the same layout by hand, where torch has it on a CPU."""

    options: dict[str, Any]
    by_hand: Callable[[], Step] | None = None


def contests() -> dict[str, Contest]:
    rank, last = dist.get_rank(), NUM_BLOCKS + 1
    two, four = [NUM_BLOCKS // 2 + 1] * 2, [2, 1, 1, NUM_BLOCKS + 2 - 4]
    plan = {f"{block}.{name}": word for block in range(1, last) for name, word in PLAN.items()}
    pipeline = {"pipeline": 2, "microbatches": MICROBATCHES}

    def in_stages(name: str, numbers: Sequence[int], cuts: list[int]) -> Contest:
        options = {**pipeline, "schedule": name, "balance": cuts}
        return Contest(options, lambda: by_hand_in_stages(name, numbers, cuts))

    return {
        "data=2": Contest({"data": 2}, lambda: by_hand(nn.parallel.DistributedDataParallel, True)),
        "shard=2": Contest(
            {"shard": 2, "auto_wrap_policy": {Block}}, lambda: by_hand(cut_in_shards, True)
        ),
        "tensor=2": Contest(
            {"tensor": 2, "tensor_plan": plan}, lambda: by_hand(cut_in_tensors, False)
        ),
        "context=2": Contest({"context": 2}),
        "context=2, gather": Contest({"context": 2, "context_attention": "gather"}),
        "pipeline=2": Contest({**pipeline, "balance": two}),
        "GPipe": in_stages("GPipe", [rank], two),
        "1F1B": in_stages("1F1B", [rank], two),
        "Interleaved1F1B": in_stages("Interleaved1F1B", [rank, rank + 2], four),
        "ZBVZeroBubble": in_stages("ZBVZeroBubble", [rank, 3 - rank], four),
    }


# figures ------------------------------------------------------------------------------------------


class Counted(TorchDispatchMode):
    """Counts what a rank hands to torch.distributed.

    Attributes:
        sends, collectives: number of calls.
        size_bytes: of the tensors, each rank's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sends = self.collectives = self.size_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func.__name__.split(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if name.startswith(("recv", "wait", "barrier", "monitored_barrier", "_wrap")):
            return  # which hand over nothing
        gives_second = name in (
            "allgather_",
            "_allgather_base_",
            "_reduce_scatter_base_",
            "reduce_scatter_",
            "alltoall_base_",
        )
        given = args[1] if gives_second else args[0]
        tensors = [given] if isinstance(given, Tensor) else given
        if name == "send":
            self.sends += 1
        else:
            self.collectives += 1
        if name != "broadcast_" or args[2] == dist.get_rank():
            self.size_bytes += sum(tensor.nbytes for tensor in tensors)


def count(step: Step) -> list[str]:
    """Sends of all ranks, collectives of one, and KiB of all."""
    with Counted() as counted:
        step()
    total = torch.tensor([counted.sends, counted.collectives, counted.size_bytes])
    dist.all_reduce(total)
    sends, collectives, size = total.tolist()
    return [f"{sends}", f"{collectives / dist.get_world_size():.0f}", f"{size / 1024:,.0f}"]


def bubble(ours: Ours) -> str:
    """The bubble of a real step's order, in units of time."""
    if not ours.strategy.pipelines:
        return ""
    with recording(ours.strategy) as recorder:
        ours.step()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, recorder.spans)
    return f"{replay(gathered):.1%}"


_UNITS = ("forward", "backward", "weights")
"""The kinds of spans that take units of time; a loss and an update take none."""


def replay(ranks: Sequence[Sequence[Span]]) -> float:
    """The share of time in which ranks wait if a forward takes 1, and a backward 2: 1 for inputs, 1
    for weights.
    """
    orders = [
        list(dict.fromkeys((s.kind, s.stage, s.microbatch) for s in spans if s.kind in _UNITS))
        for spans in ranks
    ]
    apart = {
        (stage, index) for order in orders for kind, stage, index in order if kind == "weights"
    }
    last, ends, clocks, work = (
        max(stage for order in orders for _, stage, _ in order),
        {},
        [0.0] * len(orders),
        0.0,
    )
    while any(orders):
        left = sum(map(len, orders))
        for rank, order in enumerate(orders):
            while order and (before := _before(*order[0], last)) <= ends.keys():
                kind, stage, index = order[0]
                length = 2.0 if kind == "backward" and (stage, index) not in apart else 1.0
                clocks[rank] = max([clocks[rank], *(ends[one] for one in before)]) + length
                ends[order.pop(0)] = clocks[rank]
                work += length
        assert sum(map(len, orders)) < left, orders  # no rank can go on
    return 1 - work / (max(clocks) * len(ranks))


def _before(kind: str, stage: int, index: int, last: int) -> set[tuple[str, int, int]]:
    """The steps that must be over before this one begins."""
    if kind == "forward":
        return {("forward", stage - 1, index)} if stage else set()
    if kind == "weights":
        return {("backward", stage, index)}
    return {("forward", stage, index)} if stage == last else {("backward", stage + 1, index)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=4, help="of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument(
        "--only", nargs="*", default=[], help="contests whose names have one of these in them"
    )
    arguments = parser.parse_args()
    # here, since a test runs this file where its neighbors aren't found
    from parallel_times import checking, compare, cost_of_checks

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    table = Table(
        "",
        "sends",
        "collectives",
        "KiB",
        "by hand",
        "",
        "",
        "bubble",
        "ms CPU",
        "by hand",
        "ratio",
        "95 %",
    )
    of_checks = Table("", "ms CPU", "is followed", "hashes", "share")
    before = os.getloadavg()[0]
    for name, contest in contests().items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        ours, theirs = by_core(**contest.options), contest.by_hand and contest.by_hand()
        figures = compare(ours.step, theirs, arguments.steps, arguments.rounds) if theirs else []
        for _ in range(3):
            ours.step()
        with checking():
            counts = [*count(ours.step), *(count(theirs) if theirs else [""] * 3)]
            table.add_row(name, *counts, bubble(ours), *figures)
        of_checks.add_row(name, *cost_of_checks(ours.step, max(5, arguments.rounds // 3)))
    if dist.get_rank() == 0:
        Console(width=140).print(table, of_checks)
        print(f"Load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
