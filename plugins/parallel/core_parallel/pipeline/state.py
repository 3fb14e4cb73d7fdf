"""The canonical state of a model in stages and of its optimizers, whole on rank 0 or in parts, and
back.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from core import Chunk, ShardedLeaf
from core.checkpoint import gather_whole
from core_parallel.mesh.placements import beside, chunk_of, cut_axes, placed_like
from core_parallel.stages import forms
from core_parallel.stages.forms import TensorForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core_parallel.communication.point_to_point import Line


def whole_leaf(value: Any, owner: int | None, *, line: Line, takes_part: bool) -> Any:
    """All ranks of the pipeline. A leaf of the state, whole on the first of them, on the CPU.

    Args:
        value: as this rank has it.
        owner: position of the one rank that has it; None if all have.
        line: to the other ranks.
        takes_part: False on pipelines that rank 0 isn't in, which have only parts to give.
    """
    if isinstance(value, DTensor):
        value = gather_whole(value)
    if not takes_part or not isinstance(value, Tensor | TensorForm):
        return value
    if line.position == (owner or 0):
        assert isinstance(value, Tensor), "the owner has it"
        if line.position == 0:
            return value.detach().cpu().clone()
        line.send(value, 0)
        line.wait()
    elif line.position == 0:
        return line.receive(
            torch.empty(value.shape, dtype=value.dtype, device="meta"), owner or 0
        ).cpu()
    return None


def parted_leaf(
    value: Any,
    owner: int | None,
    *,
    position: int,
    coordinates: Mapping[str, int],
    of_experts: Mapping[str, int],
) -> Any:
    """A leaf of which each rank has its own part, or nothing: of ranks that have the same, the
    first writes. What all ranks have whole stays as it is.

    Args:
        value: as this rank has it.
        owner: position of the one rank that has it; None if all have.
        position: of this rank in the pipeline.
        coordinates: of this rank along the other axes, by their names.
        of_experts: the same along those over which experts lie.
    """
    if isinstance(value, Tensor) and owner is None and not isinstance(value, DTensor):
        return value.detach()
    if not isinstance(value, Tensor | TensorForm):
        return value
    cut = cut_axes(value)
    places = of_experts
    if cut.isdisjoint(of_experts):
        places = coordinates
    is_first = not any(place for axis, place in places.items() if axis not in cut)
    shape = tuple(value.shape)
    if not is_first or position != (owner or 0):
        return ShardedLeaf(shape, value.dtype)
    assert isinstance(value, Tensor), "it is here"
    chunk: Chunk | None = Chunk((0,) * len(shape), shape, value.detach())
    if isinstance(value, DTensor):
        chunk = chunk_of(value)
    return ShardedLeaf(shape, value.dtype, tuple(filter(None, [chunk])))


def module_state(
    named: dict[str, Any],
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
    state: dict[str, Any] = copy.copy(named)  # which keeps the versions of modules
    for (name, leaf), original in zip(named.items(), originals, strict=True):
        if id(original) not in converted:
            converted[id(original)] = convert(leaf, owners.get(id(original)))
        state[name] = converted[id(original)]
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
    described = line.gather_objects(
        {
            name: {key: _described(leaf) for key, leaf in entry.items()}
            for name, entry in own.items()
        }
    )
    entries = {}
    for name, owner in owners.items():
        # In the order of all parameters, which ranks share.
        keys = described[owner or 0].get(name)
        if keys is not None:
            mine = own.get(name, keys)
            of_forms = {key: owner for key, form in keys.items() if isinstance(form, TensorForm)}
            entries[name] = {key: convert(mine[key], of_forms.get(key)) for key in keys}
    return {**named, "state": entries}


def _described(leaf: Any) -> Any:
    """The description for other ranks: of tensors with elements their form; numbers travel
    themselves.
    """
    if not isinstance(leaf, Tensor):
        return leaf
    if not leaf.ndim:
        return leaf.detach().cpu()
    return forms.of(leaf)


def for_module(own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """A state to be loaded, with nothing to copy where another rank has the tensor, or it is in its
    place already.

    Args:
        own: the module's tensors, by the same names.
        state: whole, or in parts.
    """
    loaded = cast("dict[str, Any]", copy.copy(state))  # with the versions of modules
    loaded.update({name: _for_tensor(leaf, own.get(name)) for name, leaf in state.items()})
    return loaded


def _for_tensor(leaf: Any, own: Any) -> Any:
    if isinstance(leaf, ShardedLeaf):
        if leaf.chunks:
            found = leaf.chunks[0].tensor
            if isinstance(own, DTensor):
                return beside(found, own)
            return found
        fits = isinstance(own, Tensor) and tuple(own.shape) == leaf.global_shape
        if fits and not own.is_meta:
            return own
        return torch.empty(leaf.global_shape, dtype=leaf.dtype, device="meta")
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
    found: dict[str, Any] = {}
    for name, entry in targets["state"].items():
        found[name] = dict(entry)
        for key, place in entry.items():
            if parameters[name].is_meta and isinstance(place, Tensor):
                found[name][key] = ShardedLeaf(tuple(place.shape), place.dtype)
    return {"state": found}


def for_optimizer(state: Mapping[str, Any], parameters: Mapping[Any, Tensor]) -> dict[str, Any]:
    """A state to be loaded, without the entries of parameters that other ranks have.

    Args:
        state: by names or positions, whole or in parts.
        parameters: of the optimizer, by the same.
    """
    elsewhere = {name for name, one in parameters.items() if one.is_meta}
    entries = {name: entry for name, entry in state["state"].items() if name not in elsewhere}
    return {**state, "state": entries}


def placed(leaf: Any, parameter: Tensor) -> Any:
    """A piece of an optimizer's state beside its parameter: on meta where another rank has that."""
    if getattr(leaf, "shape", None) != parameter.shape:
        return leaf
    if isinstance(parameter, DTensor) and not isinstance(leaf, DTensor):
        return placed_like(leaf, parameter)
    if parameter.is_meta:
        return leaf.to("meta")
    return leaf.to(parameter.device)
