"""The whole tensors of a module that is in parts, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.building_blocks import chunks_to_fill, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core import Chunk, Strategy


class WholeTensors:
    """The tensors of a sharded state, put together one at a time. On all ranks, in the same order.

    A rank holds its parts, and the tensor that was asked for last. Of ranks that have the same part the first gives it.
    """

    def __init__(self, strategy: Strategy, leaves: Mapping[str, Any]) -> None:
        """All ranks. Learn which rank gives which part: one exchange of places, and no tensors.

        Args:
            strategy: that has set the module up.
            leaves: tensors, DTensors and `ShardedLeaf`s by name, as `get_module_state_dict(layout="sharded")` has them.
        """
        self._strategy, self._leaves = strategy, leaves
        known: dict[Any, Any] = {}
        self._chunks = {name: chunks_to_fill(leaf, known) for name, leaf in leaves.items()}
        places = {name: [(chunk.offsets, chunk.sizes) for chunk in chunks] for name, chunks in self._chunks.items()}
        collectives = strategy.session.collectives
        every = collectives.broadcast_object(collectives.gather_objects(places))
        self._owners: dict[tuple[str, Any], int] = {}
        for rank, of_rank in enumerate(every):
            for name, found in of_rank.items():
                for place in found:
                    self._owners.setdefault((name, place), rank)
        self._is_whole = {
            name: all(_covers(of_rank.get(name, ()), shape_of(leaf)) for of_rank in every)
            for name, leaf in leaves.items()
        }

    def get(self, name: str) -> torch.Tensor:
        """All ranks. The tensor of this name, on the strategy's device. Not to be changed."""
        leaf = self._leaves[name]
        if self._is_whole[name]:
            (chunk,) = self._chunks[name]
            return chunk.tensor
        dtype = torch.uint8 if leaf.dtype == torch.bool else leaf.dtype  # what every backend can add up
        total = torch.zeros(shape_of(leaf), dtype=dtype, device=self._strategy.root_device)
        for chunk in self._own(name):
            total[chunk.box] = chunk.tensor.to(total)
        return self._strategy.reduce(total, reduce_op="sum").to(leaf.dtype)

    def _own(self, name: str) -> Sequence[Chunk]:
        rank = self._strategy.global_rank
        return [each for each in self._chunks[name] if self._owners[name, (each.offsets, each.sizes)] == rank]


def _covers(places: Sequence[tuple[Any, Any]], shape: tuple[int, ...]) -> bool:
    return len(places) == 1 and tuple(places[0][1]) == shape
