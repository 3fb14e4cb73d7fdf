"""An operation of torch's that was called, below autograd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from torch._ops import HigherOrderOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Operation:
    """One call.

    Attributes:
        func: one of `torch.ops`.
        args: its arguments.
        kwargs: its named arguments.
        given: the tensors among both.
        results: the tensors that it returned, or has written into.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Sequence[Tensor]
    results: Sequence[Tensor]

    @property
    def is_higher(self) -> bool:
        """True for one that is made of the functions it is given."""
        return isinstance(self.func, HigherOrderOperator)

    @cached_property
    def name(self) -> str:
        """The name of the operation, also where it writes into its argument."""
        found: str = self.func.overloadpacket.__name__
        return found.removesuffix("_")

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, with those that it takes by default."""
        names, by_default = _parameters_of(self.func)
        return {**by_default, **dict(zip(names, self.args, strict=False)), **self.kwargs}


@cache
def _parameters_of(func: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of an operation's arguments, and what some are by default."""
    known = func._schema.arguments
    given = {one.name: one.default_value for one in known if one.has_default_value()}
    return [one.name for one in known], given
