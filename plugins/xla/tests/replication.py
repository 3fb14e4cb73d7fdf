"""A stand-in for what torch_xla's runtime for the CPU doesn't have: collectives between processes,
over gloo.

All else is torch_xla's own, in as many processes. The functions have the signatures and the results
of torch_xla's (`core/xla_model.py`, 2.9.0), but wait. Its order of processes isn't that of the
ranks: it promises none (`runtime.global_ordinal`).
"""

import inspect

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "mul": dist.ReduceOp.PRODUCT,
}


@torch.no_grad()
def all_reduce(reduce_type, inputs, scale=1.0, groups=None, pin_layout=True):
    results = []
    for tensor in [inputs] if isinstance(inputs, torch.Tensor) else inputs:
        host = tensor.detach().cpu()
        dist.all_reduce(host, op=OPERATIONS[reduce_type])
        host = host * scale if scale != 1.0 else host
        if tensor is not inputs:
            tensor.copy_(host)
        results.append(host.to(tensor.device))
    return results[0] if isinstance(inputs, torch.Tensor) else inputs


def all_gather(
    value,
    dim=0,
    groups=None,
    output=None,
    pin_layout=True,
    channel_id=None,
    use_global_device_ids=None,
):
    host = value.detach().cpu()
    parts = [torch.empty_like(host) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, host)
    return torch.cat(parts[::-1], dim).to(value.device)


def install(rank, world_size):
    """Let torch_xla count the processes as its replicas, the last one first."""
    xr._WORLD_SIZE, xr._ORDINAL = world_size, world_size - 1 - rank
    for function in (all_reduce, all_gather):
        own = getattr(xm, function.__name__)
        assert list(inspect.signature(own).parameters) == list(
            inspect.signature(function).parameters
        )
        setattr(xm, function.__name__, function)
