"""The record of a forward pass over the stages, as far as backward needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


@dataclass(slots=True)
class Computed:
    """One microbatch in one stage: what it was given and what it made of it, with the graph
    between.

    Attributes:
        inputs, outputs: the leaves.
        given_form, form: their structures.
        asked: the arguments of the model that want a gradient.
    """

    inputs: list[Any]
    given_form: Any
    outputs: list[Any]
    form: Any
    asked: list[Tensor]


@dataclass(slots=True)
class Pass:
    """One forward pass, as far as backward needs it.

    Attributes:
        sizes: samples of each microbatch.
        wanting: the tensors among the arguments that want a gradient.
        computed: by stage and microbatch.
        gradients: of what a stage was given, by the stage that made it and the microbatch.
        asked: what this rank's stages give to the gradients of the arguments, by microbatch.
        is_at_once: the forward was run once, so that what is before a stage is in the user's graph
            too.
        runs_back: backward of the stages is under way.
    """

    sizes: list[int | None] = field(default_factory=list)
    wanting: list[Tensor] = field(default_factory=list)
    computed: dict[tuple[int, int], Computed] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    asked: dict[int, list[Tensor]] = field(default_factory=dict)
    is_at_once: bool = False
    runs_back: bool = False

    def add(self, index: int, gradients: list[Tensor]) -> None:
        """Add what a stage gives to the gradients of the arguments, for a microbatch."""
        before = self.asked.get(index)
        if before:
            gradients = [one + other for one, other in zip(before, gradients, strict=True)]
        self.asked[index] = gradients


def wanting(tree: Any) -> list[Tensor]:
    """The tensors that want a gradient."""
    if not torch.is_grad_enabled():
        return []
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor) and one.requires_grad]


def leaf_of(value: Any, *, is_argument: bool = False) -> Any:
    """An input of a stage, apart from the graph before it. The output of another stage always wants
    a gradient.
    """
    if not isinstance(value, Tensor):
        return value
    wants = value.requires_grad if is_argument else can_learn(value)
    return value.detach().requires_grad_(wants and torch.is_grad_enabled())


def can_learn(tensor: Tensor) -> bool:
    """True if it may have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()
