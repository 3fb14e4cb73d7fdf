"""The canonical state of a model in stages and of its optimizers, whole on rank 0 or in parts, and
back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from core import Chunk, ShardedLeaf
from core.checkpoint import gather_whole
from core_parallel.mesh.placements import beside, chunk_of, cut_axes, placed_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core_parallel.communication.point_to_point import Line


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A tensor that another rank of the pipeline has."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class WholeState:
    """All ranks of the pipeline. Makes whole tensors on the first of them, one at a time, on the
    CPU.

    Args:
        line: to the other ranks.
        takes_part: False on pipelines that rank 0 isn't in, which have only parts to give.
    """

    def __init__(self, line: Line, takes_part: bool) -> None:
        self._line, self._takes_part = line, takes_part

    def leaf(self, value: Any, owner: int | None) -> Any:
        """A leaf of the state.

        Args:
            value: as this rank has it.
            owner: position of the one rank that has it; None if all have.
        """
        if isinstance(value, DTensor):
            value = gather_whole(value)
        if not self._takes_part or not isinstance(value, Tensor | Elsewhere):
            return value
        if owner in (None, 0):
            return (
                value.detach().cpu().clone()
                if self._line.position == 0 and isinstance(value, Tensor)
                else None
            )
        if self._line.position == owner:
            assert isinstance(value, Tensor), "the owner has it"
            self._line.send(value, 0)
            self._line.wait()
        elif self._line.position == 0:
            return self._line.receive(
                torch.empty(value.shape, dtype=value.dtype, device="meta"), owner
            ).cpu()
        return None


class PartedState:
    """Makes leaves of which each rank has its own part, or nothing: of ranks that have the same,
    the first writes.

    Args:
        position: of this rank in the pipeline.
        coordinates: of this rank along the other axes, by their names.
        of_experts: the same along those over which experts lie.
    """

    def __init__(
        self, position: int, coordinates: Mapping[str, int], of_experts: Mapping[str, int]
    ) -> None:
        self._position, self._coordinates, self._of_experts = position, coordinates, of_experts

    def leaf(self, value: Any, owner: int | None) -> Any:
        """A leaf of the state; see `WholeState.leaf`. What all ranks have whole stays as it is."""
        if not isinstance(value, Tensor | Elsewhere):
            return value
        if owner is None and not isinstance(value, DTensor):
            return value.detach() if isinstance(value, Tensor) else value
        cut = cut_axes(value)
        places = self._coordinates if cut.isdisjoint(self._of_experts) else self._of_experts
        is_first = not any(place for axis, place in places.items() if axis not in cut)
        return chunked(value, has=is_first and self._position == (owner or 0))


def chunked(value: Tensor | Elsewhere, *, has: bool) -> ShardedLeaf:
    """A leaf of which this rank gives all that it has, or nothing."""
    shape = tuple(value.shape)
    if not has:
        return ShardedLeaf(shape, value.dtype)
    assert isinstance(value, Tensor), "it is here"
    chunk = (
        chunk_of(value)
        if isinstance(value, DTensor)
        else Chunk((0,) * len(shape), shape, value.detach())
    )
    return ShardedLeaf(shape, value.dtype, () if chunk is None else (chunk,))


def module_state(
    named: Mapping[str, Any],
    originals: Sequence[Any],
    owners: Mapping[int, int],
    convert: Callable[[Any, int | None], Any],
) -> dict[str, Any]:
    """All ranks. A module's state, leaf by leaf.

    Args:
        named: the module's state by canonical names, with meta tensors for what others have.
        originals: the parameters and buffers themselves, in the same order.
        owners: position of the rank that has a tensor, by its identity.
        convert: makes of a leaf what is wanted.
    """
    converted: dict[int, Any] = {}
    state = OrderedDict[str, Any]()
    for (name, leaf), original in zip(named.items(), originals, strict=True):
        if id(original) not in converted:
            converted[id(original)] = convert(leaf, owners.get(id(original)))
        state[name] = converted[id(original)]
    if (versions := getattr(named, "_metadata", None)) is not None:
        state._metadata = versions  # type: ignore[attr-defined]
    return state


def optimizer_state(
    named: Mapping[str, Any],
    owners: Mapping[str, int | None],
    line: Line,
    convert: Callable[[Any, int | None], Any],
) -> dict[str, Any]:
    """All ranks of the pipeline. An optimizer's state, of all stages.

    Args:
        named: this rank's, by parameter names.
        owners: position of the rank that has a parameter, None if all have it; by name, of all
            parameters.
        line: to the other ranks.
        convert: makes of a leaf what is wanted.
    """
    own = {
        name: entry
        for name, entry in named["state"].items()
        if owners[name] in (None, line.position)
    }
    described = line.gather_objects({name: _described(entry) for name, entry in own.items()})
    entries = {}
    for name, owner in owners.items():
        # In the order of all parameters, which ranks share.
        keys = described[owner or 0].get(name)
        if keys is not None:
            mine = own.get(name, keys)
            entries[name] = {key: convert(mine[key], _owner_of(keys[key], owner)) for key in keys}
    return {**named, "state": entries}


def _described(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The description for other ranks: of tensors with elements their form; numbers travel
    themselves.
    """
    described = dict(entry)
    for key, leaf in entry.items():
        if isinstance(leaf, Tensor):
            described[key] = (
                Elsewhere(tuple(leaf.shape), leaf.dtype) if leaf.ndim else leaf.detach().cpu()
            )
    return described


def _owner_of(described: Any, owner: int | None) -> int | None:
    return owner if isinstance(described, Elsewhere) else None


def for_module(own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """A state to be loaded, with nothing to copy where another rank has the tensor, or it is in its
    place already.

    Args:
        own: the module's tensors, by the same names.
        state: whole, or in parts.
    """
    loaded = OrderedDict((name, _for_tensor(leaf, own.get(name))) for name, leaf in state.items())
    if (versions := getattr(state, "_metadata", None)) is not None:
        loaded._metadata = versions  # type: ignore[attr-defined]
    return loaded


def _for_tensor(leaf: Any, own: Any) -> Any:
    if isinstance(leaf, ShardedLeaf):
        if leaf.chunks:
            found = leaf.chunks[0].tensor
            return beside(found, own) if isinstance(own, DTensor) else found
        fits = isinstance(own, Tensor) and not own.is_meta and tuple(own.shape) == leaf.global_shape
        return own if fits else torch.empty(leaf.global_shape, dtype=leaf.dtype, device="meta")
    if isinstance(leaf, Tensor) and isinstance(own, Tensor) and own.is_meta:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
    return leaf


def optimizer_targets(
    targets: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Places for the tensors of a saved optimizer's state; of another stage's there is none here.

    Args:
        targets: the places in an optimizer that has all, by name and key.
        parameters: of the optimizer, by name.
    """

    def here(name: str, place: Any) -> Any:
        is_elsewhere = isinstance(place, Tensor) and parameters[name].is_meta
        return ShardedLeaf(tuple(place.shape), place.dtype) if is_elsewhere else place

    entries = targets["state"].items()
    return {
        "state": {
            name: {key: here(name, place) for key, place in entry.items()}
            for name, entry in entries
        }
    }


def for_optimizer(state: Mapping[str, Any], parameters: Mapping[Any, Tensor]) -> dict[str, Any]:
    """A state to be loaded, without the entries of parameters that other ranks have.

    Args:
        state: by names or positions, whole or in parts.
        parameters: of the optimizer, by the same.
    """
    return {
        **state,
        "state": {
            name: entry
            for name, entry in state["state"].items()
            if not _is_elsewhere(parameters.get(name))
        },
    }


def placed(leaf: Any, parameter: Tensor) -> Any:
    """A piece of an optimizer's state beside its parameter: on meta where another rank has that."""
    if getattr(leaf, "shape", None) != parameter.shape:
        return leaf
    if isinstance(parameter, DTensor) and not isinstance(leaf, DTensor):
        return placed_like(leaf, parameter)
    return leaf.to("meta" if parameter.is_meta else parameter.device)


def _is_elsewhere(parameter: Any) -> bool:
    return isinstance(parameter, Tensor) and parameter.is_meta
