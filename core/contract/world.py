"""The processes of a run, as one of them sees it: numbers of ranks, and collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store  # torch.distributed's own, with types

ReduceOp: TypeAlias = Literal["mean", "sum", "min", "max", "product"]
"""The operation that combines the values of all ranks."""


class World:
    """The ranks of a strategy, and their collectives. By default there is one process.

    Ranks and world size count processes; `data_parallel_size` and `data_parallel_rank` count shards
    of the data.
    """

    watch_store: Store | None = None
    """A `Store` of torch that all ranks reach, from `setup_environment` on, for the watch over
    ranks. None takes that of torch's process group; a strategy without such a group makes one, a
    `TCPStore` for example, or isn't watched.
    """
    waits_in: tuple[str, ...] = ()
    """Modules whose functions wait for other ranks, and their packages: torch.distributed is
    known.
    """

    # ranks, right from `setup_environment` on -----------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return 1

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        return 0

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return 0

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return 0

    @property
    def data_parallel_size(self) -> int:
        """Number of shards that the data is split into."""
        return self.world_size

    @property
    def data_parallel_rank(self) -> int:
        """Number of this rank's shard of the data, from 0."""
        return self.global_rank

    @property
    def is_global_zero(self) -> bool:
        """True on the rank that prints, logs and writes what only one may."""
        return self.global_rank == 0

    # 9. collectives -------------------------------------------------------------------------------

    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean"
    ) -> Tensor:
        """All ranks. Combine a tensor of one shape over all ranks; the result is the same
        everywhere.

        Args:
            tensor: any shape; of one shape and dtype on all ranks. Not changed.
            group: a process group, None for all ranks.
            reduce_op: `"mean"`, `"sum"`, `"min"`, `"max"`, `"product"`, or the backend's own.

        Returns:
            A tensor of the same shape. The same tensor on one process.
        """
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks. Stack a tensor of one shape from all ranks.

        Args:
            tensor: shape (...); of one shape and dtype on all ranks.
            group: a process group, None for all ranks.
            sync_grads: let gradients flow back to the ranks that they belong to.

        Returns:
            Shape (world_size, ...). The same tensor, of shape (...), on one process.
        """
        return tensor

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """All ranks. A tensor, or any picklable object, of rank `src`."""
        return obj

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All ranks. On rank `dst` everyone's picklable object, in the order of ranks; None
        elsewhere.
        """
        return [obj]

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all ranks arrive. `name` is in the message if one doesn't."""

    def absent_ranks(self, point: str) -> list[int]:
        """Any ranks. Reach a point, wait for the others, and return those that don't arrive soon.
        No collective.

        For work that all ranks must do or none: called only where it is done, so that it costs
        nothing elsewhere. By default all are present.
        """
        return []

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """All ranks. Agree on yes or no: yes if all say so, or with `all=False` if any does."""
        return decision
