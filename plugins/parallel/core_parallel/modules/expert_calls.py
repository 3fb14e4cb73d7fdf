"""Calls of a module of experts: in which form it is called, and that it answers for each expert
alone.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core import ModuleError
from core_parallel.modules.followed_calls import is_without_values

if TYPE_CHECKING:
    from torch import nn

_FORM = (
    "Under expert= and tensor= a module of experts is called with three tensors: tokens of shape "
    "(tokens, width), the numbers of their experts, and the weights of these, both of shape "
    "(tokens, k). It returns, for each token, the sum of its experts' answers by their weights."
)


class ExpertCalls:
    """The form in which a module of experts is called, and its check.

    Args:
        name: of the module.
        module: has this rank's experts.
        own: number of these.
        all_of: number of experts of all ranks.
    """

    def __init__(self, name: str, module: nn.Module, own: int, all_of: int) -> None:
        self._name, self._module, self._own, self._all = name, module, own, all_of
        self._signature = signature(module.forward)
        self._is_checked = False

    def begin(self, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, numbers of experts, and weights, before a call that sees this rank's experts.

        Raises:
            ModuleError: it was called otherwise, or doesn't answer for each expert alone.
        """
        tokens, numbers, weights = self._given(args, kwargs)
        self._count(self._own)
        if not self._is_checked and len(tokens):
            self._check(tokens, weights)
            self._is_checked = True
        return tokens, numbers, weights

    def end(self) -> None:
        """After a call."""
        self._count(self._all)

    def _count(self, number: int) -> None:
        """Set the module's own count, if it has one, to the number of experts that it sees."""
        if hasattr(self._module, "num_experts"):
            self._module.num_experts = number  # type: ignore[assignment]  # an attribute of its own

    def _given(self, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        try:
            given = list(self._signature.bind(*args, **kwargs).arguments.values())
        except TypeError:
            given = [*args, *kwargs.values()]
        shapes = [tuple(one.shape) for one in given if isinstance(one, Tensor)]
        fits = (
            len(given) == len(shapes) == 3
            and len(shapes[0]) == len(shapes[1]) == 2
            and shapes[1] == shapes[2]
        )
        if not fits or shapes[0][0] != shapes[1][0] or given[1].is_floating_point():
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} was called with "
                f"{shapes or 'no tensors'}. {_FORM}"
            )
        return given[0], given[1], given[2]

    def _check(self, tokens: Tensor, weights: Tensor) -> None:
        """Compare the module's answer for a few tokens with the sum of those for each of their
        experts alone.
        """
        if is_without_values(self._module):
            return
        tokens = tokens[:4].detach()
        weights = weights[:4, : self._own].detach()
        draws = torch.Generator().manual_seed(0)
        numbers = torch.stack(
            [torch.randperm(self._own, generator=draws)[: weights.shape[1]] for _ in tokens]
        )
        numbers = numbers.to(tokens.device)
        training = {part: part.training for part in self._module.modules()}
        self._module.eval()
        try:
            with torch.no_grad():
                whole = self._module.forward(tokens, numbers, weights)
                rows = tokens.repeat_interleave(weights.shape[1], 0)
                pairs = self._module.forward(rows, numbers.reshape(-1, 1), weights.reshape(-1, 1))
        finally:
            for part, was in training.items():
                part.training = was
        self._compare(whole, pairs, numbers)

    def _compare(self, whole: Any, pairs: Any, numbers: Tensor) -> None:
        if not isinstance(whole, Tensor) or whole.ndim != 2 or len(whole) != len(numbers):
            got = (
                f"a tensor of shape {tuple(whole.shape)}"
                if isinstance(whole, Tensor)
                else type(whole).__name__
            )
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} returned {got}. {_FORM}"
            )
        summed = pairs.unflatten(0, numbers.shape).sum(1)
        # Coarse, since formats of 16 bits round; what isn't such a sum differs by as much as it is.
        if float((whole - summed).abs().max()) > 0.05 * float(whole.abs().max()):
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} computes other values for tokens "
                "with several experts than for each expert alone (they differ by "
                f"{float((whole - summed).abs().max()):.2g}). {_FORM} Choose and normalize "
                "experts, and limit their capacity, before it is called."
            )
