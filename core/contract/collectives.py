"""A strategy's collectives, in the small form that a CheckpointIO takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.capability import Capability

if TYPE_CHECKING:
    from core.contract.strategy import Strategy


class StrategyCollectives:
    """The communication of one strategy; of a world of one without `Capability.COLLECTIVES`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        connected = Capability.COLLECTIVES in strategy.capabilities
        self.rank = strategy.global_rank if connected else 0
        self.size = strategy.world_size if connected else 1

    def barrier(self) -> None:
        """Wait until all are here."""
        self._strategy.barrier()

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""
        return self._strategy.broadcast(obj, src)

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        return self._strategy.gather_objects(obj, dst)
