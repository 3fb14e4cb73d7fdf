"""A stand-in for a slice of two hosts: torch_xla's runtime for the CPU is of one process, and has
no devices elsewhere.

Each process has four devices of its own, that torch_xla's real runtime plays, and is told of eight.
Where the eight would be in a mesh, its own four are: every process computes what all hosts compute
together, and not a part of it. All else is real, the graphs, the shards and gloo between the
processes. What two hosts can't show so, is the exchange between their devices, and the reading of a
tensor of which a host has a part only.
"""

import torch_xla.distributed.spmd as spmd
import torch_xla.runtime as runtime
from torch_xla.debug import metrics

NUM_HOSTS, NUM_DEVICES = 2, 4


class Mesh(spmd.Mesh):
    """The devices of this host in the place of all."""

    def __init__(self, device_ids, mesh_shape, axis_names):
        assert len(device_ids) == NUM_HOSTS * NUM_DEVICES
        assert mesh_shape[0] % NUM_HOSTS == 0
        told, runtime.global_runtime_device_count = (
            runtime.global_runtime_device_count,
            lambda: NUM_DEVICES,
        )
        super().__init__(
            device_ids[:NUM_DEVICES], (mesh_shape[0] // NUM_HOSTS, *mesh_shape[1:]), axis_names
        )
        runtime.global_runtime_device_count = told

    def size(self):
        return super().size() * NUM_HOSTS


def install():
    """Let this process be one of two hosts."""
    spmd.Mesh = Mesh
    runtime.global_runtime_device_count = lambda: NUM_HOSTS * NUM_DEVICES


def num_graphs():
    """The number of graphs that this host has sent off: on real hosts a graph runs when all
    have.
    """
    return [
        metrics.metric_data(name)[0]
        for name in ("ExecuteReplicatedTime", "CompileTime")
        if metrics.metric_data(name)
    ]
