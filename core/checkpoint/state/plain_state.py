"""Copies of a state: each is encoded, and built again with other tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.checkpoint.state.checks import path_of
from core.checkpoint.state.shards import is_sharded
from core.checkpoint.state.tree import Decoder, Encoder, leaf_name
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from core.checkpoint.state.checks import KeyPath


def to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of `state` that can be written and be loaded without running code.

    Tensors are detached, on the CPU, and without the rest of a larger storage that they are a view
    of. Those that share memory go on sharing it.

    Raises:
        CheckpointError: something in it is of another type; its path is named, as
            `state["callbacks"]["x"][3]`.
    """
    on_cpu = once_each(_on_cpu)

    def take(leaf: Any, key_path: KeyPath, _: object) -> torch.Tensor:
        if is_sharded(leaf):
            raise CheckpointError(
                f"{path_of(key_path)} is this rank's part of a tensor. Save it with "
                "DistributedCheckpointIO."
            )
        return on_cpu(leaf, "")

    return copied(state, take)


def copied(state: dict[str, Any], take: Callable[[Any, KeyPath, object], Any]) -> dict[str, Any]:
    """A copy of `state`, with what `take` makes of each tensor.

    Args:
        state: plain types, tensors and arrays.
        take: called with a tensor or a rank's part of one, its key path, and `AT_ONCE` where its
            elements are needed when it returns.

    Raises:
        CheckpointError: something in it can't be saved; its path is named.
    """
    encoder = Encoder()
    tree = encoder.encode_state(state)
    leaves = encoder.leaves

    def tensor(key_path: KeyPath, dtype: object, shape: object, target: object) -> Any:
        return take(leaves[leaf_name(key_path)], key_path, target)

    def array(key_path: KeyPath, _: int) -> Any:
        return leaves[leaf_name(key_path)].numpy()

    return Decoder(tensor, array).decode(tree)  # type: ignore[no-any-return]  # as it was given


def once_each(
    copy: Callable[[torch.Tensor, str], torch.Tensor],
) -> Callable[[torch.Tensor, str], torch.Tensor]:
    """The same function, but that tensors on the same memory get the same copy."""
    known: dict[object, torch.Tensor] = {}

    def copy_once(tensor: torch.Tensor, name: str) -> torch.Tensor:
        # By memory and not by `id`: each `state_dict()` makes new objects for the same parameters.
        address = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
        identity = (*address, tensor.shape, tensor.stride(), tensor.dtype)
        # Empty tensors may all have the address 0, and share nothing.
        if identity not in known or not tensor.numel():
            known[identity] = copy(tensor, name)
        return known[identity]

    return copy_once


def _on_cpu(tensor: torch.Tensor, _: str) -> torch.Tensor:
    moved = tensor.cpu()
    if moved.untyped_storage().nbytes() > moved.nbytes:
        return moved.clone()
    return moved
