"""Collectives for tests: one process, alone and with several ranks."""

from typing import ClassVar

import torch.distributed

from core import CheckpointError
from core.checkpoint import DistributedCheckpointIO
from core.strategies.group_collectives import GroupCollectives
from core_testing import in_one_process

WRITER = {"strategy": {"alias": "fsdp", "provider": "core-fsdp", "version": "0"}}


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


def save_state(path, state, storage=None):
    """By one process; to a folder, unless it is told to where else."""
    (storage or DistributedCheckpointIO()).save_checkpoint(state, path, collectives=Alone())


def together(function, num_ranks=2):
    """`function(collectives)` on ranks in this process; what it returns, or its CheckpointError, on
    each.
    """

    def run():
        try:
            return function(GroupCollectives(torch.distributed.group.WORLD, WRITER))
        except CheckpointError as error:
            return error

    return in_one_process(run, ranks=num_ranks)
