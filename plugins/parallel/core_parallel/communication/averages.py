"""Gradients averaged over the data axis, and clipped over the pipeline's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from core_fsdp.gradients import add_up
from core_parallel.mesh.placements import own_part
from core_parallel.modules.torch_clipping import by_mesh

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from core_parallel.communication.point_to_point import Line

_BUCKET_BYTES = 25 << 20


def average(parameters: Iterable[Tensor], group: Any) -> None:
    """All ranks of one stage. Average gradients, in place; a rank without one of them counts as
    zeros.

    Args:
        parameters: the same ones in the same order on all ranks.
        group: of the ranks.
    """
    learning = [one for one in parameters if one.requires_grad and not one.is_meta]
    if not learning:
        return
    gave = torch.tensor(
        [float(one.grad is not None) for one in learning], device=learning[0].device
    )
    dist.all_reduce(gave, group=group)
    gradients: list[Tensor] = []
    for parameter, count in zip(learning, gave.tolist(), strict=True):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(own_part(parameter.grad))
    for bucket in _buckets(gradients):
        flat = _flatten_dense_tensors(bucket)
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for gradient, averaged in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
            gradient.copy_(averaged)


def add_up_terms(parameters: Iterable[Tensor]) -> None:
    """All ranks. Lay gradients out as their parameters are: those of what sees a part of the
    sequence are terms.
    """
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            add_up(parameter)


def copy_from_first(tensors: Iterable[Tensor], group: Any) -> None:
    """All ranks of one stage. Copy the tensors of the first, in place.

    Args:
        tensors: the same ones in the same order on all ranks; those that other stages have are left
            out.
        group: of the ranks.
    """
    with torch.no_grad():
        for tensor in tensors:
            own = own_part(tensor.detach())
            if not own.is_meta and own.numel():
                whole = own.contiguous()
                dist.broadcast(whole.view(-1).view(torch.uint8), group=group, group_src=0)
                own.copy_(whole)


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(one.dtype for one in gradients):
        bucket: list[Tensor] = []
        for gradient in (one for one in gradients if one.dtype == dtype):
            bucket.append(gradient)
            if sum(one.nbytes for one in bucket) >= _BUCKET_BYTES:
                yield bucket
                bucket = []
        if bucket:
            yield bucket


def norm_of(counted: Sequence[Tensor], norm_type: float, line: Line | None) -> Tensor:
    """All ranks. The norm of gradients that lie over any meshes, over all stages.

    Args:
        counted: the gradients that this rank adds: each belongs to one rank of the pipeline.
        norm_type: of the norm.
        line: to the other stages, None if there are none.

    Returns:
        A scalar tensor, the same on all ranks.
    """
    norms = []
    for group in by_mesh(counted):
        norm = get_total_norm(group, norm_type)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norms.append(norm)
    own = get_total_norm(norms, norm_type)
    if line is not None:
        norms = [line.share(own.double(), position) for position in range(line.size)]
        own = get_total_norm(norms, norm_type)
    return own
