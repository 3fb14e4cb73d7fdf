"""A strategy's collectives, in the small form that a CheckpointIO takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.contract.checkpoint_io import Collectives
    from core.contract.spec import Fingerprint
    from core.contract.world import World


class StrategyCollectives:
    """The communication of one strategy; of a world of one without `Capability.COLLECTIVES`."""

    def __init__(
        self,
        world: World,
        has_peers: bool,
        fingerprint: Fingerprint,
        in_background: Callable[[], Collectives],
    ) -> None:
        self._world, self._fingerprint = world, fingerprint
        self.rank, self.size = 0, 1
        if has_peers:
            self.rank, self.size = world.global_rank, world.world_size
        self.in_background = in_background

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
