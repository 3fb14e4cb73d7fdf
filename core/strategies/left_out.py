"""Parameters that a loss leaves out, where ranks exchange gradients of those that it depends on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from core.contract import ModuleError

if TYPE_CHECKING:
    from collections.abc import Collection

    from core.contract import Strategy

_MOST_NAMED = 8


class LeftOutParameters:
    """Makes it an error that names the rank where a loss leaves out parameters which it depends on elsewhere.

    For a strategy whose exchange would meet another one's data then. A rank whose loss uses all pays nothing; one that
    leaves some out waits for the others to say the same, once for each set of them.

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
        # The digest is the point's name: ranks that leave out other parameters come to another point.
        digest = hashlib.sha256("\n".join(left_out).encode()).hexdigest()
        if others := self._strategy.absent_ranks(f"left out {digest}"):
            raise ModuleError(self._missed_by(others, left_out))
        self._agreed.add(left_out)

    def forget(self) -> None:
        """Idempotent. Forget what ranks have agreed on."""
        self._agreed.clear()

    def _missed_by(self, others: list[int], names: tuple[str, ...]) -> str:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return (
            f"The loss does not depend on {', '.join(map(repr, names[:_MOST_NAMED]))}{more} on rank "
            f"{self._strategy.global_rank}, and on {', '.join(f'rank {other}' for other in others)} it does, or leaves "
            f"out others: {type(self._strategy).__name__} exchanges gradients of the same parameters on all ranks. Let "
            "the loss depend on the same ones everywhere, by `loss + 0 * layer(inputs).sum()` for a layer that is left "
            "out. (A rank that comes later by a thirtieth of the strategy's timeout= counts as one that uses them.)"
        )
