"""Collectives for tests: one process, and real processes over gloo."""

from typing import ClassVar

import torch.distributed


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
