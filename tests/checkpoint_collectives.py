"""Collectives for tests: one process, and real processes over gloo."""

import torch.distributed


class Alone:
    """One process."""

    rank = 0
    size = 1

    def barrier(self):
        pass

    def broadcast_object(self, obj, src=0):
        return obj

    def gather_objects(self, obj, dst=0):
        return [obj]


class Gloo:
    """The default process group."""

    def __init__(self):
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def barrier(self):
        torch.distributed.barrier()

    def broadcast_object(self, obj, src=0):
        held = [obj]
        torch.distributed.broadcast_object_list(held, src)
        return held[0]

    def gather_objects(self, obj, dst=0):
        gathered = [None] * self.size if self.rank == dst else None
        torch.distributed.gather_object(obj, gathered, dst)
        return gathered
