"""A strategy's collectives, in the small form that a CheckpointIO takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.checkpoint_io import Collectives
    from core.session.session import Session


class StrategyCollectives:
    """The communication of one strategy; of a world of one without `Capability.COLLECTIVES`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._strategy = strategy = session.strategy
        self.rank = strategy.global_rank if session.has_peers else 0
        self.size = strategy.world_size if session.has_peers else 1

    @property
    def writer(self) -> Mapping[str, Any]:
        """Alias, provider and version of the strategy and its precision."""
        return {
            kind: {"alias": alias, "provider": provider, "version": version}
            for kind, alias, provider, version in self._session.fingerprint
            if kind in ("strategy", "precision")
        }

    def barrier(self) -> None:
        """Wait until all are here."""
        self._strategy.barrier()

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""
        return self._strategy.broadcast(obj, src)

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        return self._strategy.gather_objects(obj, dst)

    def agree(self, vote: bool) -> bool:
        """All ranks. True if all say so."""
        return self._strategy.reduce_boolean_decision(vote) if self.size > 1 else vote

    def in_background(self) -> Collectives:
        """The same ranks, for one background thread."""
        return self._strategy.background_collectives()
