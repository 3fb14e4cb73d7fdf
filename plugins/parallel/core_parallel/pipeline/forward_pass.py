"""The record of a forward pass over the stages, as far as backward needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(slots=True)
class Computed:
    """One microbatch in one stage, with the graph of it.

    Attributes:
        outputs, form: the leaves of its result, and their structure.
        given: what the stage before has handed on, as far as it wants a gradient.
    """

    outputs: list[Any]
    form: Any
    given: list[Tensor]


@dataclass(slots=True)
class Pass:
    """One forward pass, as far as backward needs it.

    Attributes:
        sizes: samples of each microbatch.
        wanting: the tensors among the arguments that want a gradient.
        leaves: for each of these, what stages compute with, whose `grad` is what they give to it.
        computed: by stage and microbatch.
        gradients: of what a stage was given, by the stage that made it and the microbatch.
        is_at_once: the forward was run once, so that what is before a stage is in the user's graph
            too.
        runs_back: backward of the stages is under way.
    """

    sizes: list[int | None] = field(default_factory=list)
    wanting: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    computed: dict[tuple[int, int], Computed] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    is_at_once: bool = False
    runs_back: bool = False


def wanting(tree: Any) -> list[Tensor]:
    """The tensors that want a gradient."""
    if not torch.is_grad_enabled():
        return []
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor) and one.requires_grad]


def replaced(tree: Any, tensors: list[Tensor], others: list[Tensor]) -> Any:
    """A structure with other tensors in place of some."""
    by_identity = {id(one): other for one, other in zip(tensors, others, strict=True)}
    return tree_map_only(Tensor, lambda leaf: by_identity.get(id(leaf), leaf), tree)


def leaf_of(output: Any) -> Any:
    """The output of another stage, apart from the graph before it. It always wants a gradient."""
    if not isinstance(output, Tensor):
        return output
    return output.detach().requires_grad_(can_learn(output) and torch.is_grad_enabled())


def can_learn(tensor: Tensor) -> bool:
    """True if it may have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()
