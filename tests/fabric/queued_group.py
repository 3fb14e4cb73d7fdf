"""A backend of torch's process groups that ends as NCCL's does, for one rank: `shutdown` waits for
what was begun.

In torch 2.9 and later `ProcessGroupNCCL::shutdown` flushes all collectives and waits for them, and
`abort` ends them (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

import os

import torch.distributed as dist


class QueuedGroup(dist.ProcessGroup):
    """Writes to the file `QUEUED_GROUP` how it ends."""

    def shutdown(self):
        _note("waits for the others")

    def abort(self):
        _note("aborts")

    def getBackendName(self):
        return "queued"


def _note(text):
    with open(os.environ["QUEUED_GROUP"], "a") as file:
        file.write(text + "\n")


def _make(store, rank, size, timeout):
    _note(f"timeout {timeout.total_seconds():.0f} s")
    return QueuedGroup(rank, size)


if "queued" not in dist.Backend.backend_list:
    dist.Backend.register_backend("queued", _make, devices=["cpu"])
