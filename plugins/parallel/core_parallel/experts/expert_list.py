"""A list of experts as one module, whose parameters are stacked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExpertList(nn.Module):
    """Experts of one form, called for the tokens that a router has chosen for them. Computes alike
    on any strategy.

        self.experts = ExpertList(Expert() for _ in range(8))
        ...
        weights, numbers = self.gate(x).softmax(-1).topk(2)
        x = x + self.experts(x, numbers, weights)

    Parameters are stacked, with the expert as their first dim, and have the names of one expert's
    after `"each."`.

    Args:
        experts: modules of one class with the same shapes, from shape (tokens, width) to (tokens,
            width); without buffers.

    Attributes:
        num_experts: that this rank computes.

    Raises:
        ModuleError: they differ, or have buffers.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        members = list(experts)
        _refuse_unlike(members)
        self.num_experts = len(members)
        self.each = members[0]
        owned = [dict(member.named_parameters()) for member in members]
        for name, first in owned[0].items():
            owner, _, last = name.rpartition(".")
            stacked = torch.stack([own[name].detach() for own in owned])
            parameter = nn.Parameter(stacked, requires_grad=first.requires_grad)
            self.each.get_submodule(owner).register_parameter(last, parameter)
        for part in self.each.modules():
            for name in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(type(part), name, None)):
                    vars(part)[name] = partial(_draw_each, part, name)

    def forward(self, tokens: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        """The sum of the experts' answers by weights, shape (tokens, width).

        Args:
            tokens: of shape (tokens, width).
            numbers: of the experts of each token, shape (tokens, k).
            weights: of these, of the same shape.
        """
        stacked = dict(self.each.named_parameters())
        parts: list[Tensor] = [tokens.new_zeros(0, tokens.shape[-1])]
        places: list[Tensor] = [numbers.new_zeros(0)]
        for number in range(self.num_experts):
            place, rank = torch.where(numbers == number)
            if len(place):
                answer: Any = functional_call(
                    self.each,
                    {name: one[number] for name, one in stacked.items()},
                    (tokens[place],),
                )
                parts.append(answer * weights[place, rank, None])
                places.append(place)
        found = torch.cat(parts)
        return found.new_zeros(len(tokens), found.shape[-1]).index_add(0, torch.cat(places), found)


def _draw_each(part: nn.Module, name: str) -> None:
    """Draw one expert after the other: its own method takes stacked parameters for those of one,
    and draws too little.

    Args:
        part: a module of one expert, with stacked parameters.
        name: of the method of its class.
    """
    stacked = {key: one for key, one in part._parameters.items() if one is not None}
    try:
        for slices in zip(*(one.detach().unbind() for one in stacked.values()), strict=True):
            part._parameters.update(zip(stacked, map(nn.Parameter, slices), strict=True))
            getattr(type(part), name)(part)
    finally:
        part._parameters.update(stacked)


def _refuse_unlike(members: list[nn.Module]) -> None:
    forms = {
        (type(one).__name__, *((name, *own.shape) for name, own in one.named_parameters()))
        for one in members
    }
    has_buffers = any(next(one.buffers(), None) is not None for one in members)
    if len(forms) != 1 or has_buffers:
        shown = "; ".join(map(str, forms)) or "none"
        raise ModuleError(
            "ExpertList takes experts of one class with the same parameters and without buffers, "
            f"and got {shown}."
        )
