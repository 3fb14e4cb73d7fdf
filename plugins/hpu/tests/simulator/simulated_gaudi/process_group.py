"""The process group `hccl`, over gloo.

"Distributed Backend Initialization",
docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Distributed_Backend_Initialization.html:
importing `habana_frameworks.torch.distributed.hccl` makes the backend known. "HCCL API Reference",
docs.habana.ai/en/latest/API_Reference_Guides/HCCL_APIs/index.html: the primitives are AllReduce,
Broadcast, Reduce, AllGather, ReduceScatter, AlltoAll, Send and Recv, and a barrier. "C APIs",
docs.habana.ai/en/latest/API_Reference_Guides/HCCL_APIs/C_API.html: operations are sum, min and max,
product and average aren't supported; numbers are float32, bfloat16, float16 and int32. What is only
moved may be of any type, as DDP does. Tensors have to be on the device; their values are needed, so
that the graph is launched first.
"""

import torch
import torch.distributed as dist

from simulated_gaudi import graph
from simulated_gaudi.device import HPUTensor

_OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)


class ProcessGroupHCCL(dist.ProcessGroup):
    """Ranks with one device each."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def _device_types(self):
        return [torch.device("hpu")]

    def getBackendName(self):
        return "hccl"

    def allreduce(self, tensors, opts=None):
        opts = opts or dist.AllreduceOptions()
        _refuse(tensors, opts.reduceOp)
        return self._gloo.allreduce(_memory_of(tensors), opts)

    def broadcast(self, tensors, opts=None):
        return self._gloo.broadcast(_memory_of(tensors), opts or dist.BroadcastOptions())

    def allgather(self, outputs, inputs, opts=None):
        opts = opts or dist.AllgatherOptions()
        return self._gloo.allgather(
            [_memory_of(each) for each in outputs], _memory_of(inputs), opts
        )

    def barrier(self, opts=None):
        return self._gloo.barrier(opts or dist.BarrierOptions())


def _memory_of(tensors):
    if strange := [tensor for tensor in tensors if not isinstance(tensor, HPUTensor)]:
        raise RuntimeError(f"No backend type associated with device type {strange[0].device.type}")
    graph.launch("value")
    return [tensor.raw for tensor in tensors]


def _refuse(tensors, operation):
    if not any(operation == known for known in _OPERATIONS):
        raise RuntimeError(f"Unsupported ReduceOp for HCCL process group: {operation}")
    if tensors[0].dtype not in _DTYPES:
        raise RuntimeError(
            f"Input tensor data type is not supported for HCCL process group: {tensors[0].dtype}"
        )


def register():
    if torch.__version__ >= torch.torch_version.TorchVersion("2.15"):
        raise ImportError(
            f"the simulated devices need torch 2.13: torch {torch.__version__} can't join them in "
            "Python"
        )
    dist.Backend.register_backend("hccl", ProcessGroupHCCL, devices=["hpu"])
