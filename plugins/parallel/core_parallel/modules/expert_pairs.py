"""Modules of experts of which each rank of a group has some: a forward sees pairs of a token and
one of its experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import ModuleError
from core_parallel.modules.expert_calls import ExpertCalls
from core_parallel.modules.local_parameters import use_local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn


def refuse_unlike(name: str, parameters: Mapping[str, Tensor]) -> None:
    """Refuse parameters that aren't of as many experts each.

    Args:
        name: of the module.
        parameters: of its experts, whole, by name in it.

    Raises:
        ModuleError: with their shapes.
    """
    shapes = {key: tuple(one.shape) for key, one in parameters.items()}
    if () in shapes.values() or len({shape[0] for shape in shapes.values()}) != 1:
        shown = ", ".join(f"{key!r} of shape {shape}" for key, shape in shapes.items())
        raise ModuleError(
            f"The parameters of the experts {name!r} must have the number of experts as their "
            f"first dim, and it has {shown or 'nothing'}. Name those that belong to experts in the "
            f"plan too, such as '{name}.weight'; leave the module out; or make one module of a "
            "list of experts by core_parallel.ExpertList."
        )


def refuse_uneven(name: str, count: int, axis: str, size: int) -> None:
    """Refuse a number of experts of which ranks can't have equally many.

    Raises:
        ModuleError: with both numbers.
    """
    if count % size:
        raise ModuleError(
            f"{name!r} has {count} experts, and {axis}={size} doesn't divide that. Choose a size "
            "that does."
        )


@dataclass(frozen=True, slots=True)
class Routes:
    """The ways of the pairs of a token and one of its experts.

    Attributes:
        order: positions of the pairs that leave, among all of this rank's tokens.
        experts: of the pairs that arrive, counted from this rank's first one.
        there: brings rows of the pairs that leave to the ranks of their experts.
        back: brings rows of the pairs that have arrived back.
    """

    order: Tensor
    experts: Tensor
    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


class ExpertPairs(ABC):
    """The hooks of one module of experts, to be subclassed by how pairs come to their experts.

    Args:
        name: of the module.
        module: has this rank's part of the parameters.
        own: number of this rank's experts.
        all_of: number of experts of all ranks.
    """

    def __init__(self, name: str, module: nn.Module, own: int, all_of: int) -> None:
        self._name, self._module, self._own, self._all = name, module, own, all_of
        self._form = ExpertCalls(name, module, own, all_of)
        self._calls: list[tuple[Tensor, Routes]] = []

    def attach(self, to_local: Callable[[Any], Tensor]) -> None:
        """Register the hooks; see `use_local`."""
        use_local(self._module, to_local)
        self._module.register_forward_pre_hook(self._begin, with_kwargs=True)
        self._module.register_forward_hook(self._end, always_call=True)

    def enter(self, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """All ranks. Tokens and weights as this rank computes with them."""
        return tokens, weights

    @abstractmethod
    def routes(self, numbers: Tensor) -> Routes:
        """All ranks. The ways of pairs whose experts have these numbers."""

    def leave(self, sums: Tensor) -> Tensor:
        """All ranks. The sums of a token's answers over all ranks, of those that came back here."""
        return sums

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        tokens, numbers, weights = self._form.begin(args, kwargs)
        tokens, weights = self.enter(tokens, weights)
        routes = self.routes(numbers.flatten())
        self._calls.append((numbers, routes))
        rows = routes.there(tokens[routes.order // numbers.shape[1]])
        factors, experts = routes.there(weights.flatten()[routes.order]), routes.experts
        if not len(experts):
            # One row that counts nowhere, so that backward goes through the exchange and the
            # parameters here too.
            rows, factors = rows.sum(0, keepdim=True) + 1, factors.sum(0, keepdim=True) + 1
            experts = experts.new_zeros(1)
        return (rows, experts[:, None], factors[:, None]), {}

    def _end(self, module: nn.Module, args: Any, output: Any) -> Any:
        self._form.end()
        call = self._calls.pop() if self._calls else None
        if output is None or call is None:  # an error is on its way
            return None
        numbers, routes = call
        answers = routes.back(output[: len(routes.experts)])
        pairs = answers.new_zeros(numbers.numel(), *answers.shape[1:])
        pairs = pairs.index_copy(0, routes.order, answers)
        return self.leave(pairs.unflatten(0, numbers.shape).sum(1))
