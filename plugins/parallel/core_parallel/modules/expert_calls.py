"""Calls of a module of experts: in which form it is called, and that it answers with a sum by
weights.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

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
        module.register_forward_hook(self._follow)  # before what its owner does with the answer

    def begin(self, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, numbers of experts, and weights, before a call that sees this rank's experts.

        Raises:
            ModuleError: it was called otherwise.
        """
        tokens, numbers, weights = self._given(args, kwargs)
        self._count(self._own)
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

    def _follow(self, module: nn.Module, given: Any, output: Any) -> None:
        """Compare, in backward, what the module answers with the gradients of weights. A sum by
        weights is as large as each weight times the sum's derivative by it.

        Raises:
            ModuleError: it has answered in another form.
        """
        rows, _, weights = given
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(rows):
            got = f"a tensor of shape {tuple(getattr(output, 'shape', ()))}"
            if not isinstance(output, Tensor):
                got = type(output).__name__
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} returned {got}. {_FORM}"
            )
        learns = output.requires_grad and weights.requires_grad
        if self._is_checked or not learns or is_without_values(self._module):
            return
        answers, factors = output.detach(), weights.detach()
        of_answers: list[Tensor] = []

        def note(gradient: Tensor) -> None:
            of_answers.append((gradient * answers).sum(1, keepdim=True))

        def compare(gradient: Tensor) -> None:
            self._compare(gradient * factors, of_answers.pop())

        output.register_hook(note)
        weights.register_hook(compare)

    def _compare(self, by_weights: Tensor, by_answers: Tensor) -> None:
        self._is_checked = True
        # Coarse, since formats of 16 bits round; what isn't such a sum differs by as much as it is.
        if float((by_weights - by_answers).abs().max()) > 0.05 * float(by_answers.abs().max()):
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} returns no sum of its experts' "
                f"answers by their weights. {_FORM} Normalize weights, and limit the capacity of "
                "experts, before it is called."
            )
