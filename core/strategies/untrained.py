"""Parameters without a gradient, for wrappers that don't know it: frozen ones, and those that a
loss leaves out.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from core.contract import ConfigurationError, ModuleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from core.contract import Strategy


class FrozenParameters:
    """Makes it an error that a parameter gets gradients which was frozen when it was set up; costs
    nothing a step.

    For a strategy whose wrapper or engine looks at `requires_grad` once. Such a gradient would stay
    on its rank, and the ranks' weights would drift apart without a word.

    Args:
        why: what becomes of such gradients, and what to do instead: the end of the error's message.
    """

    def __init__(self, why: str) -> None:
        self._why = why
        self._known: dict[Tensor, tuple[str, RemovableHandle]] = {}

    def __bool__(self) -> bool:
        """True if any parameter was frozen."""
        return bool(self._known)

    def watch(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Watch parameters that have just been set up, perhaps not for the first time."""
        for name, parameter in named:
            if parameter in self._known:
                self._known.pop(parameter)[1].remove()
            if not parameter.requires_grad:
                # torch takes hooks of those that aren't frozen only
                parameter.requires_grad_(True)
                try:
                    handle = parameter.register_post_accumulate_grad_hook(self._refuse)
                finally:
                    parameter.requires_grad_(False)
                self._known[parameter] = name, handle

    def unfrozen(self) -> dict[Tensor, str]:
        """The parameters that require gradients by now, with their names."""
        return {
            parameter: name
            for parameter, (name, _) in self._known.items()
            if parameter.requires_grad
        }

    def forget(self) -> None:
        """Stop watching. Idempotent."""
        for _, handle in self._known.values():
            handle.remove()
        self._known = {}

    def _refuse(self, parameter: Tensor) -> None:
        name, _ = self._known[parameter]
        raise ConfigurationError(
            f"The parameter {name!r} gets gradients, and was frozen when it was set up: {self._why}"
        )


_MOST_NAMED = 8


class LeftOutParameters:
    """Makes it an error that names the rank where a loss leaves out parameters which it depends on
    elsewhere.

    For a strategy whose exchange would meet another one's data then. A rank whose loss uses all
    pays nothing; one that leaves some out waits for the others to say the same, once for each set
    of them.

    Args:
        strategy: finds the ranks that don't come to where this rank waits.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._agreed: set[tuple[str, ...]] = set()

    def check(self, names: Collection[str]) -> None:
        """Some ranks, before gradients are exchanged; `names` are those of parameters without one.

        Raises:
            ModuleError: other ranks have gradients of them, or leave out others.
        """
        left_out = tuple(names)
        if not left_out or left_out in self._agreed:
            return
        # The digest is the point's name: ranks that leave out other parameters come to another
        # point.
        digest = hashlib.sha256("\n".join(left_out).encode()).hexdigest()
        others = self._strategy.absent_ranks(f"left out {digest}")
        if others:
            self._refuse(others, left_out)
        self._agreed.add(left_out)

    def forget(self) -> None:
        """Idempotent. Forget what ranks have agreed on."""
        self._agreed.clear()

    def _refuse(self, others: list[int], names: tuple[str, ...]) -> None:
        named = ", ".join(map(repr, names[:_MOST_NAMED]))
        if len(names) > _MOST_NAMED:
            named += f" and {len(names) - _MOST_NAMED} more"
        raise ModuleError(
            f"The loss does not depend on {named} on "
            f"rank {self._strategy.global_rank}, and on "
            f"{', '.join(f'rank {other}' for other in others)} it does, or leaves out others: "
            f"{type(self._strategy).__name__} exchanges gradients of the same parameters on all "
            "ranks. Let the loss depend on the same ones everywhere, by `loss + 0 * "
            "layer(inputs).sum()` for a layer that is left out. (A rank that comes later by a "
            "thirtieth of the strategy's timeout= counts as one that uses them.)"
        )
