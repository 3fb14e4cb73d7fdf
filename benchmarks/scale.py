"""The work of one process at set-up, save and load for 64, 1,024 and 4,096 ranks: messages, bytes
and seconds.

    python benchmarks/scale.py [RANKS ...] [--leaves 100] [--torch]

One process stands for rank 0, on torch's `fake` process group, in which it is one of so many. What
the other ranks would have said and written is made by the code that they would run, in this
process, and isn't counted. Files are written to memory. Each leaf is a float32 tensor that is cut
by rows over all ranks, as FSDP does. `--torch` measures the planner of torch.distributed.checkpoint
for the same state.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import pickle
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.folder.reader import FolderReader
from core.checkpoint.folder.writer import PartWriter
from core.checkpoint.joint import writing
from core.contract import Chunk, ShardedLeaf
from core.strategies import group_collectives
from core.strategies.fingerprint import exchange
from core.strategies.rendezvous import rounds

COLUMNS = 8
KINDS = ("accelerator", "strategy", "precision", "torch")
FINGERPRINT = tuple((kind, "alias", "core-provider", "1.2.3") for kind in KINDS)


@dataclasses.dataclass
class Row:
    """The work that this rank did.

    Attributes:
        what: the part of a run.
        messages: that it has sent or received, or files that it has read.
        size_bytes: of them.
        seconds: of this rank's CPU time.
    """

    what: str
    messages: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


class Waits(Exception):
    """A rank would wait here for the others."""


class CountedStore:
    """A store, with a count of what is asked of it."""

    def __init__(self, store: dist.Store) -> None:
        self._store, self.row = store, Row("")

    def _count(self, *texts: Any) -> None:
        self.row.messages += 1
        self.row.size_bytes += sum(len(str(text)) for text in texts)

    def set(self, key: str, value: str) -> None:
        """Write."""
        self._count(key, value)
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        self._count(key, amount)
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """True if all are there."""
        self._count(*keys)
        return self._store.check(keys)

    def get(self, key: str) -> bytes:
        """Read what is there."""
        self._count(key)
        if not self._store.check([key]):
            raise Waits
        value = self._store.get(key)
        self.row.size_bytes += len(value)
        return value


def join(num_ranks: int) -> list[Row]:
    """Compare fingerprints at a store: what rank 0 asks, as the last to come, and what the store
    has to answer.
    """
    server = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    store = CountedStore(server)
    began_s = time.perf_counter()
    for rank in range(1, num_ranks):
        with contextlib.suppress(Waits):
            exchange(store, rank, num_ranks, FINGERPRINT)
    before = dataclasses.replace(store.row)
    last_s = time.perf_counter()
    exchange(store, 0, num_ranks, FINGERPRINT)
    end_s = time.perf_counter()
    own = Row(
        "set-up: fingerprint, rank 0",
        store.row.messages - before.messages,
        store.row.size_bytes - before.size_bytes,
        end_s - last_s,
    )
    return [
        own,
        dataclasses.replace(
            store.row, what="set-up: the store, all ranks", seconds=end_s - began_s
        ),
    ]


class Comers:
    """The store of rank 0 at a meeting, at which the others do their part between two of its
    questions, uncounted.
    """

    def __init__(self, store: CountedStore, num_ranks: int) -> None:
        self._store, self._numbers = store, range(0)
        self._num_ranks, self._has_come = num_ranks, False

    def add(self, key: str, amount: int) -> int:
        """Ask for a counter, once all others have asked, or come."""
        before = dataclasses.replace(self._store.row)
        if not self._numbers:
            numbers = [self._store.add("core/asked", 1) for _ in range(1, self._num_ranks)]
            self._numbers = range(numbers[0], numbers[-1] + 1)
        elif not self._has_come and key != "core/asked":
            name = self._store.get("core/answer").decode().partition(" ")[2]
            for rank in range(1, self._num_ranks):
                self._store.set(f"core/round/{name}/{rank}", "")
                self._store.add(f"core/round/{name}", 1)
            self._has_come = True
        self._store.row = before
        return self._store.add(key, amount)

    def set(self, key: str, value: str) -> None:
        """Write."""
        self._store.set(key, value)


def meet(num_ranks: int) -> Row:
    """Meet under torchrun or a scheduler: what rank 0 asks and says."""
    server = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    store = CountedStore(server)
    rounds.meet(Comers(store, num_ranks), 0, num_ranks, timedelta(minutes=5))  # type: ignore[arg-type]  # as a store
    return dataclasses.replace(store.row, what="set-up: the meeting, rank 0")


def state_of(rank: int, num_ranks: int, num_leaves: int) -> dict[str, Any]:
    """The state of one rank: of each leaf its row, and plain values."""
    row = torch.ones(1, COLUMNS)
    leaf = ShardedLeaf((num_ranks, COLUMNS), torch.float32, (Chunk((rank, 0), (1, COLUMNS), row),))
    return {
        "model": dict.fromkeys((f"layer.{number}.weight" for number in range(num_leaves)), leaf),
        "step": 7,
    }


def placed_state(num_ranks: int, num_leaves: int) -> dict[str, Any]:
    """The same of rank 0, in DTensors over the fake group."""
    mesh = init_device_mesh("cpu", (num_ranks,))
    leaves = {
        f"layer.{number}.weight": DTensor.from_local(
            torch.ones(1, COLUMNS), mesh, [Shard(0)], run_check=False
        )
        for number in range(num_leaves)
    }
    return {"model": leaves, "step": 7}


class RankZero:
    """The `Collectives` of rank 0: the other ranks do their part when they are asked for it, out of
    its time.
    """

    rank = 0

    def __init__(self, folder: LocalFolder, num_ranks: int, num_leaves: int) -> None:
        self.writer: dict[str, Any] = {}
        self.size, self._folder, self._num_leaves = num_ranks, folder, num_leaves
        self._token = ""
        self.row, self.others_s = Row(""), 0.0

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj`, sent once: it goes on from rank to rank."""
        self._count(pickle.dumps(obj))
        if isinstance(obj, tuple) and isinstance(obj[1], tuple):
            self._token, _ = obj[1]
        return obj

    def agree(self, vote: bool) -> bool:
        """The vote of all, by `all_reduce`: a number to and from a rank for each doubling of the
        ranks.
        """
        doublings = math.ceil(math.log2(self.size))
        self.row.messages += 2 * doublings
        self.row.size_bytes += 2 * doublings * 8
        return vote

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any]:
        """`obj`, and what the others send, unpickled here. More than 64 send it by branches."""
        if self.size <= group_collectives.FAN:
            return self._heard(obj, [self._answer(rank, obj) for rank in range(1, self.size)])
        gathered = group_collectives.gather_in_branches(obj, 0, self.size, self._gather_from)
        assert gathered is not None, "this is rank 0"
        return gathered

    def _gather_from(self, own: Any, ranks: Sequence[int]) -> list[Any]:
        """The objects that the other ranks of a branch send, or the first ones of branches."""
        began_s = time.thread_time()
        first = own if ranks[1] == 1 else own[0]
        answers = [
            self._answer(rank, first)
            if ranks[1] == 1
            else [
                self._answer(each, first) for each in range(rank, min(rank + ranks[1], self.size))
            ]
            for rank in ranks[1:]
        ]
        self.others_s += time.thread_time() - began_s
        return self._heard(own, answers)

    def _heard(self, own: Any, answers: list[Any]) -> list[Any]:
        began_s = time.thread_time()
        sent = list(map(pickle.dumps, answers))
        self.others_s += time.thread_time() - began_s
        for message in sent:
            self._count(message)
        return [own, *map(pickle.loads, sent)]

    def _answer(self, rank: int, obj: Any) -> Any:
        if obj[1] is None:
            return obj
        part = PartWriter(state_of(rank, self.size, self._num_leaves), rank)
        entries = part.write(self._folder, self._token)
        return None, (writing._packed(entries), part.num_written)

    def _count(self, message: bytes) -> None:
        self.row.messages += 1
        self.row.size_bytes += len(message)


def save(folder: LocalFolder, num_ranks: int, state: dict[str, Any], what: str) -> list[Row]:
    """Save as rank 0, whatever is there."""
    collectives = RankZero(folder, num_ranks, len(state["model"]))
    began_s = time.thread_time()
    writing.write(folder, state, collectives)  # type: ignore[arg-type]  # it is asked for these two only
    collectives.row.seconds = time.thread_time() - began_s - collectives.others_s
    return [dataclasses.replace(collectives.row, what=what)]


class CountedFolder(LocalFolder):
    """A checkpoint folder, with a count of the small files that are read."""

    row = Row("")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Content of a small file."""
        content = super().read(name, max_bytes)
        self.row.messages += 1
        self.row.size_bytes += len(content)
        return content


def load(path: Path, num_ranks: int, num_leaves: int, num_readers: int, what: str) -> Row:
    """Load the part of a rank in the middle, of so many that read."""
    folder = CountedFolder(path)
    folder.row = Row(what)
    rank, height = num_readers // 2, num_ranks // num_readers
    part = Chunk((rank * height, 0), (height, COLUMNS), torch.zeros(height, COLUMNS))
    leaf = ShardedLeaf((num_ranks, COLUMNS), torch.float32, (part,))
    targets = {"model": {f"layer.{number}.weight": leaf for number in range(num_leaves)}}
    began_s = time.thread_time()
    FolderReader(folder, folder.read_manifest(), (rank, num_readers)).plan(targets).fill()
    folder.row.seconds = time.thread_time() - began_s
    assert part.tensor.min() == 1
    return folder.row


def plan_of_torch(num_ranks: int, state: dict[str, Any]) -> list[Row]:
    """Plan a save by torch.distributed.checkpoint: all ranks' plans at rank 0, and the metadata
    that it makes.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    own = planner.create_local_plan()
    plans = [own] + [_moved(own, rank) for rank in range(1, num_ranks)]
    messages = [pickle.dumps(plan) for plan in plans[1:]]
    began_s = time.thread_time()
    plans = [own, *map(pickle.loads, messages)]
    answers, metadata = planner.create_global_plan(plans)
    content = pickle.dumps(metadata)
    size = sum(map(len, messages)) + sum(len(pickle.dumps(answer)) for answer in answers[1:])
    saved = Row(
        "torch: plan of a save, rank 0", 2 * len(messages), size, time.thread_time() - began_s
    )
    began_s = time.thread_time()
    pickle.loads(content)
    return [
        saved,
        Row("torch: metadata that each rank loads", 1, len(content), time.thread_time() - began_s),
    ]


def _moved(plan: Any, rank: int) -> Any:
    """The plan of another rank: the same boxes, in its rows."""
    items = []
    for item in plan.items:
        if item.tensor_data is None:  # a plain value, which rank 0 writes
            continue
        offsets = torch.Size((rank, 0))
        chunk = dataclasses.replace(item.tensor_data.chunk, offsets=offsets)
        items.append(
            dataclasses.replace(
                item,
                index=dataclasses.replace(item.index, offset=offsets),
                tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk),
            )
        )
    return dataclasses.replace(plan, items=items)


def measure(num_ranks: int, num_leaves: int, *, with_torch: bool) -> list[Row]:
    """All rows for so many ranks."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        state = placed_state(num_ranks, num_leaves)
        with tempfile.TemporaryDirectory(dir=memory) as place:
            folder = LocalFolder(Path(place) / "last.ckpt")
            rows = [
                meet(num_ranks),
                *join(num_ranks),
                *save(folder, num_ranks, state, "save: commit, rank 0"),
            ]
            rows += save(folder, num_ranks, state, "save: commit that replaces, rank 0")
            for readers, what in (
                (num_ranks, "load: on as many ranks"),
                (num_ranks // 2, "load: on half as many"),
                (1, "load: by one process, all of it"),
            ):
                rows.append(load(folder.path, num_ranks, num_leaves, readers, what))
        return rows + (plan_of_torch(num_ranks, state["model"]) if with_torch else [])
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 1024, 4096])
    parser.add_argument("--leaves", type=int, default=100)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    found = [measure(ranks, options.leaves, with_torch=options.torch) for ranks in options.ranks]
    print(
        "| messages or files; bytes; CPU s |",
        " | ".join(f"{ranks:,}" for ranks in options.ranks),
        "|",
    )
    print("|" + " --- |" * (1 + len(found)))
    for rows in zip(*found, strict=True):
        cells = [f"{row.messages:,}; {row.size_bytes:,}; {row.seconds:.4f}" for row in rows]
        print(f"| {rows[0].what} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
