"""The world of a rehearsal: any number of ranks, of which this process is the only one, or a few
processes here.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore  # torch.distributed's own, with types
from torch._subclasses.fake_tensor import FakeTensor

# registers the backend "fake" too
from torch.testing._internal.distributed.fake_pg import FakeStore

from core import ClusterEnvironment, Found, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMPARES_NOTHING: dict[str, Any] = {"replicas_of": lambda *asked: None}  # tensors have no values


class PretendedEnvironment(ClusterEnvironment):
    """One rank of `num_nodes` nodes with `devices` ranks each."""

    main_address = "localhost"
    main_port = 1  # nothing listens there

    def __init__(self, devices: int, num_nodes: int, rank: int = 0) -> None:
        """The numbers are what `--devices` and `--num-nodes` say; `rank` is this process's."""
        self.devices, self._num_nodes, self._rank = devices, num_nodes, rank

    @classmethod
    def detect(cls) -> Found:
        """It is given, never found."""
        return Found(1)

    def world_size(self) -> int:
        """Number of ranks."""
        return self.devices * self._num_nodes

    def global_rank(self) -> int:
        """Of this process."""
        return self._rank

    def local_rank(self) -> int:
        """Of this process."""
        return self._rank % self.devices

    def node_rank(self) -> int:
        """Of this process."""
        return self._rank // self.devices

    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._num_nodes


def join(
    world_size: int, rank: int = 0, meeting: str | None = None, peers: Sequence[int] = ()
) -> None:
    """Join the process group of a rehearsal.

    Args:
        world_size: number of ranks.
        rank: of this process.
        meeting: path of a file in which ranks meet, each a process of this machine. None: there is
            no other rank, and the group is torch's fake one, which sends nothing.
        peers: who meets, if that isn't all; each other group is a fake one.
    """
    if not peers and (meeting is not None or world_size == 1):
        store: Any = HashStore() if meeting is None else FileStore(meeting, world_size)
        dist.init_process_group(
            "gloo", rank=rank, world_size=world_size, store=store, timeout=timedelta(seconds=60)
        )
    else:
        dist.all_reduce = functools.partial(_reduce_alike, dist.all_reduce)
        store = FakeStore()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=store)
        if peers and meeting is not None:
            met = FileStore(meeting, len(peers))
            own: Any = dist.distributed_c10d._new_process_group_helper

            def made(size: int, place: int, ranks: Any, *rest: Any, **options: Any) -> Any:
                if [*ranks] == [*peers]:
                    rest = ("gloo", met, *rest[2:])  # in place of the backend and its store
                return own(size, place, ranks, *rest, **options)

            dist.distributed_c10d._new_process_group_helper = made  # type: ignore[assignment]  # here


def pretend(strategy: Strategy) -> None:
    """Answer for the ranks that aren't there: they have and decide what this one does."""
    world_size = strategy.world_size
    answers: dict[str, Any] = {
        "reduce_boolean_decision": lambda decision, all=True: decision,
        "broadcast": lambda obj, src=0: obj,
        "gather_objects": lambda obj, dst=0: [obj] * world_size,
        "barrier": lambda name=None: None,
        "absent_ranks": lambda point: [],
        **_COMPARES_NOTHING,
    }
    if world_size > 1:
        vars(strategy).update(answers)


def pass_by_values(strategy: Strategy) -> None:
    """Keep tensors without values from being sent as objects."""
    own = strategy.broadcast
    answer = {"broadcast": lambda obj, src=0: obj if isinstance(obj, FakeTensor) else own(obj, src)}
    vars(strategy).update(answer, **_COMPARES_NOTHING)


def _reduce_alike(
    own: Callable[..., Any],
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """`torch.distributed.all_reduce` where all ranks have the same tensor."""
    work = own(tensor, op, group, async_op)
    is_fake = dist.get_backend(group) == "fake"
    if is_fake and op == dist.ReduceOp.SUM and not isinstance(tensor, FakeTensor):
        tensor.mul_(dist.get_world_size(group))
    return work
