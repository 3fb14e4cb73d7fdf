"""The part of a DTensor that this rank has: its place in the whole, and the axes along which ranks
have the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from core import Chunk

if TYPE_CHECKING:
    from torch import Tensor


def own_part(tensor: Tensor) -> Tensor:
    """The rank's own part of a DTensor; another tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def chunk_of(tensor: Any) -> Chunk | None:
    """The rank's own part with its place in the whole; None if it is empty."""
    local = tensor.to_local().detach()
    if not local.numel():
        return None
    (place,) = tensor.__create_chunk_list__()  # what torch's own checkpoints ask
    return Chunk(tuple(place.offsets), tuple(place.sizes), local)


def placed_like(whole: Tensor, like: DTensor) -> DTensor:
    """A DTensor over a copy of this rank's part of a tensor that it has whole.

    Args:
        whole: shape of `like`.
        like: whose placement it gets.
    """
    chunk = chunk_of(like)
    local = whole.new_empty(like.to_local().shape) if chunk is None else whole[chunk.box].clone()
    return beside(local, like)


def beside(local: Tensor, like: DTensor) -> DTensor:
    """A DTensor over this rank's part, placed as another one is."""
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def cut_axes(tensor: Any) -> frozenset[str]:
    """The names of the mesh's axes along which ranks have different parts of a tensor."""
    if not isinstance(tensor, DTensor):
        return frozenset()
    names = tensor.device_mesh.mesh_dim_names or ()
    return frozenset(
        name
        for name, placement in zip(names, tensor.placements, strict=True)
        if not placement.is_replicate()
    )
