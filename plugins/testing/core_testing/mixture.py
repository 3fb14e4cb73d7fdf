"""A mixture of experts, for strategies that distribute experts over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from core_testing.cases import Case

_WIDTH = 8


class Experts(nn.Module):
    """Experts whose weights have the expert as their first dim.

    Attributes:
        num_experts: that are computed here.
    """

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.up_weight = nn.Parameter(torch.randn(num_experts, _WIDTH, _WIDTH) / 2)
        self.down_weight = nn.Parameter(torch.randn(num_experts, _WIDTH, _WIDTH) / 2)

    def forward(self, tokens: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        """The sum of the experts' answers by weights, shape (tokens, 8).

        Args:
            tokens: of shape (tokens, 8).
            numbers: of the experts of each token, shape (tokens, k).
            weights: of these, of the same shape.
        """
        result = torch.zeros_like(tokens)
        for number in range(self.num_experts):
            place, choice = torch.where(numbers == number)
            answer = torch.tanh(tokens[place] @ self.up_weight[number]) @ self.down_weight[number]
            result = result.index_add(
                0, place, (answer * weights[place, choice, None]).to(result.dtype)
            )
        return result


class Mixture(nn.Module):
    """A router and its experts, of which each sample has two, beside the input."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, num_experts, bias=False)
        self.experts = Experts(num_experts)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shape (batch, 8) to (batch, 8), or (batch, length, 8) to (batch, length, 8)."""
        tokens = hidden.flatten(0, -2)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        return hidden + self.experts(tokens, numbers, weights).view_as(hidden)  # type: ignore[no-any-return]


def mixture_of(case: Case) -> nn.Module | None:
    """The mixture that networks of a case have after their first layer; None if the case is without
    experts.
    """
    return Mixture(case.num_experts) if case.num_experts else None
