"""This rank's part of a module's weights, in the memory where the strategy keeps them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.checkpoint import gather_whole
from core.contract import Capability, Chunk, ShardedLeaf, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class LocalWeights(nn.Module):
    """The parameters and buffers of a module, without anything else that a copy would copy too.

    What `parameters()` and `buffers()` yield, and what a copy consists of, are this rank's parts of
    those in shards.
    """

    def __init__(
        self, strategy: Any, module: nn.Module, leaves: Mapping[str, Any], num_parameters: int
    ) -> None:
        """Wrap the tensors that `find_local_weights` has found.

        Args:
            strategy: that keeps the weights.
            module: whose weights they are.
            leaves: parameters, then buffers, by name: tensors, DTensors and ShardedLeafs.
            num_parameters: how many of them are parameters.
        """
        super().__init__()
        self.leaves = dict(leaves)
        self._num_parameters = num_parameters
        # Not as attributes, which would make them parts of this one.
        self._whose = (strategy, module)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """This rank's parts."""
        return _parts(list(self.leaves.values())[: self._num_parameters])

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """This rank's parts."""
        return _parts(list(self.leaves.values())[self._num_parameters :])

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        # By this torch's `AveragedModel` makes the average.
        copied = nn.Module()
        for index, part in enumerate(self.parameters()):
            copied.register_parameter(
                f"parameter_{index}", nn.Parameter(part.clone(), requires_grad=False)
            )
        for index, part in enumerate(self.buffers()):
            copied.register_buffer(f"buffer_{index}", part.clone())
        return copied

    def notify(self) -> None:
        """All ranks. Notify a strategy that computes with copies of these tensors that they have
        changed.
        """
        strategy, module = self._whose
        # DTensors are what the model computes with; an engine's parts are masters, from which it
        # has still to copy.
        has_masters = not any(map(_is_dtensor, self.leaves.values()))
        if Capability.SHARDED_STATE in strategy.capabilities and has_masters:
            strategy.load_module_state_dict(
                module, strategy.get_module_state_dict(module, layout="sharded")
            )

    def placed(self, copied: nn.Module, *, whole: bool) -> dict[str, Any]:
        """All ranks. A copy by name: what is in shards as such, or gathered one after the other."""
        parts = iter([tensor.detach() for tensor in (*copied.parameters(), *copied.buffers())])
        return {name: self._placed(parts, leaf, whole) for name, leaf in self.leaves.items()}

    def _placed(self, parts: Iterator[Tensor], leaf: Any, whole: bool) -> Any:
        if isinstance(leaf, ShardedLeaf):
            chunks = tuple(Chunk(chunk.offsets, chunk.sizes, next(parts)) for chunk in leaf.chunks)
            part = ShardedLeaf(leaf.global_shape, leaf.dtype, chunks)
            if not whole:
                return part
            strategy = self._whose[0]
            total = torch.zeros(part.global_shape, dtype=part.dtype, device=strategy.root_device)
            return part.gather(total, partial(strategy.reduce, reduce_op="sum")).cpu()
        if not _is_dtensor(leaf):
            return next(parts)
        placed = type(leaf.detach()).from_local(
            next(parts),
            leaf.device_mesh,
            leaf.placements,
            run_check=False,
            shape=leaf.shape,
            stride=leaf.stride(),
        )
        if whole:
            return gather_whole(placed).cpu()
        return placed


def find_local_weights(strategy: Any, module: nn.Module) -> LocalWeights:
    """All ranks. The module's parameters and buffers, or what the strategy keeps in their place.

    Raises:
        UnsupportedError: the strategy gives copies of its weights only.
    """
    parameters = dict(module.named_parameters())
    own: dict[str, Any] = {**parameters, **dict(module.named_buffers())}
    leaves = _leaves(strategy, module, own)
    # Asked for twice: the strategy's own memory is the same both times, a copy lies elsewhere while
    # the first is held.
    if _addresses(leaves) != _addresses(_leaves(strategy, module, own)):
        raise UnsupportedError(
            f"Averaging weights needs the memory in which they are, and {type(strategy).__name__} "
            "with these options gives copies of them. Keep the weights in the memory of the "
            "devices or of the CPU.",
            capability=Capability.SHARDED_STATE,
        )
    return LocalWeights(strategy, module, leaves, len(parameters))


def _leaves(strategy: Any, module: nn.Module, own: Mapping[str, Any]) -> dict[str, Any]:
    if Capability.SHARDED_STATE not in strategy.capabilities:
        return dict(own)
    state = strategy.get_module_state_dict(module, layout="sharded")
    return {
        name: state[name] if isinstance(state.get(name), ShardedLeaf) else tensor
        for name, tensor in own.items()
    }


def own_part(saved: Any, leaf: Any) -> list[Tensor]:
    """The part of a saved tensor, whole or in the same parts, that this rank has in `leaf`."""
    if isinstance(saved, ShardedLeaf) or _is_dtensor(saved):
        return list(_parts([saved]))
    if isinstance(leaf, ShardedLeaf):
        return [saved[chunk.box] for chunk in leaf.chunks]
    if _is_dtensor(leaf):
        (box,) = leaf.__create_chunk_list__()
        pairs = zip(box.offsets, box.sizes, strict=True)
        return [saved[tuple(slice(start, start + size) for start, size in pairs)]]
    return [saved]


def _parts(leaves: Iterable[Any]) -> Iterator[Tensor]:
    """This rank's parts, in their own memory."""
    for leaf in leaves:
        if isinstance(leaf, ShardedLeaf):
            yield from (chunk.tensor for chunk in leaf.chunks)
        elif _is_dtensor(leaf):
            yield leaf.detach().to_local()
        else:
            yield leaf.detach()


def _addresses(leaves: Mapping[str, Any]) -> list[int]:
    """Where parts in shards are."""
    shards = [leaf for leaf in leaves.values() if isinstance(leaf, ShardedLeaf)]
    return [chunk.tensor.data_ptr() for leaf in shards for chunk in leaf.chunks]


def _is_dtensor(leaf: Any) -> bool:
    """True for a DTensor, by torch's own protocol."""
    return hasattr(type(leaf), "__create_chunk_list__")
