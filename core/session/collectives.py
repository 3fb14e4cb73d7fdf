"""A strategy's collectives, in the small form that a CheckpointIO takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.world import World


class StrategyCollectives:
    """The communication of one strategy; of a world of one without `Capability.COLLECTIVES`."""

    def __init__(self, session: Any) -> None:  # a Session, whose module imports this one
        self._world: World = session.strategy
        self._fingerprint = session.fingerprint
        self.rank = 0
        self.size = 1
        if session.has_peers:
            self.rank = self._world.global_rank
            self.size = self._world.world_size
        self.in_background = session.strategy.background_collectives

    @property
    def writer(self) -> Mapping[str, Any]:
        """Alias, provider and version of the strategy and its precision."""
        return {
            kind: {"alias": alias, "provider": provider, "version": version}
            for kind, alias, provider, version in self._fingerprint
            if kind in ("strategy", "precision")
        }

    def barrier(self) -> None:
        """Wait until all are here."""
        self._world.barrier()

    def broadcast_object(self, obj: object, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""
        return self._world.broadcast(obj, src)

    def gather_objects(self, obj: object, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        return self._world.gather_objects(obj, dst)

    def agree(self, vote: bool) -> bool:
        """All ranks. True if all say so."""
        if self.size == 1:
            return vote
        return self._world.reduce_boolean_decision(vote)
