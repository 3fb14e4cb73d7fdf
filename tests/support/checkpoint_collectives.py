"""Collectives for tests: one process, threads, and real processes over gloo."""

import itertools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import torch.distributed

from core import CheckpointError


class Alone:
    """One process."""

    rank = 0
    size = 1
    writer: ClassVar = {"strategy": {"alias": "single_device", "provider": "core", "version": "0"}}

    def barrier(self):
        pass

    def broadcast_object(self, obj, src=0):
        return obj

    def gather_objects(self, obj, dst=0):
        return [obj]

    def in_background(self):
        return self


class Gloo:
    """A process group, or the default one."""

    writer: ClassVar = {"strategy": {"alias": "ddp", "provider": "core-ddp", "version": "0"}}

    def __init__(self, group=None):
        self.group = group
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def barrier(self):
        torch.distributed.barrier(self.group)

    def broadcast_object(self, obj, src=0):
        held = [obj]
        torch.distributed.broadcast_object_list(held, src, group=self.group)
        return held[0]

    def gather_objects(self, obj, dst=0):
        gathered = [None] * self.size if self.rank == dst else None
        torch.distributed.gather_object(obj, gathered, dst, group=self.group)
        return gathered

    def in_background(self):
        return Gloo(torch.distributed.new_group(backend="gloo"))


class InThreads:
    """Ranks that are threads of this process; each sees what the others have left."""

    writer: ClassVar = {"strategy": {"alias": "fsdp", "provider": "core-fsdp", "version": "0"}}

    def __init__(self, rank, shared):
        self.rank, self.size, self.shared = rank, shared.barrier.parties, shared

    def barrier(self):
        self.shared.barrier.wait(20)

    def _all(self, obj):
        self.shared.told[self.rank] = obj
        self.barrier()
        told = list(self.shared.told)
        self.barrier()
        return told

    def broadcast_object(self, obj, src=0):
        return self._all(obj)[src]

    def gather_objects(self, obj, dst=0):
        told = self._all(obj)
        return told if self.rank == dst else None

    def exchange(self, sends, receives):
        for rank, buffer in sends:
            self.shared.sent[self.rank, rank].put(bytes(buffer))
        for rank, buffer in receives:
            buffer[:] = self.shared.sent[rank, self.rank].get(timeout=20)

    def agree(self, vote):
        return all(self._all(vote))

    def in_background(self):
        return self


def in_threads(num_ranks, function):
    """`function(collectives)` on as many ranks; what it returns, or the CheckpointError that it raises, on each."""
    sent = {pair: queue.Queue() for pair in itertools.product(range(num_ranks), repeat=2)}
    shared = SimpleNamespace(barrier=threading.Barrier(num_ranks), told=[None] * num_ranks, sent=sent)

    def run(rank):
        try:
            return function(InThreads(rank, shared))
        except CheckpointError as error:
            return error

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))
