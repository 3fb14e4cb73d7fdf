"""The ranks of this process, the number of processes, and printing on rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.contract import Strategy


class Ranks:
    """The ranks of a `Fabric` or `Trainer`, and `print` on rank 0. Ranks are right once the
    processes are made.
    """

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """The strategy, which has the ranks."""

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return self.strategy.node_rank

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0, which prints, logs and writes what only one may."""
        return self.strategy.is_global_zero

    def print(self, *args: Any, **kwargs: Any) -> None:
        """All ranks. Print on rank 0."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201  # it is what this method is for
