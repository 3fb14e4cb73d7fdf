"""A process group of torch whose ranks are threads of one process that take turns."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as in_c  # torch.distributed's own, with types
from torch.distributed import distributed_c10d as c10d

from core import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from core_testing.turns import Turns

BACKEND = "one_process"
"""Its name among torch's backends."""

_COMBINED: dict[Any, Callable[[Tensor], Tensor]] = {
    dist.ReduceOp.SUM: lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    dist.ReduceOp.AVG: lambda stacked: stacked.mean(0),
    dist.ReduceOp.PRODUCT: lambda stacked: stacked.prod(0, dtype=stacked.dtype),
    dist.ReduceOp.MIN: lambda stacked: stacked.amin(0),
    dist.ReduceOp.MAX: lambda stacked: stacked.amax(0),
}
_BY_GROUP = ("map", "names", "group_ranks", "backend_config", "to_tag", "coalesce_state")
_MISSING = (
    "alltoall",
    "all_to_all_single",
    "alltoall_base",
    "recv_anysource",
    "reduce_scatter",
    "allreduce_coalesced",
    "reduce_scatter_single_coalesced",
)


class ThreadedWorld:
    """The place where the ranks of one process meet: a store, and what is on its way between
    them.
    """

    def __init__(self, turns: Turns) -> None:
        """Begin with nothing."""
        self.wait_until = turns.wait_until
        self.stored: dict[str, bytes] = {}
        self.brought: defaultdict[Any, dict[int, Any]] = defaultdict(dict)
        """By group and number of a collective: what each rank has brought to it."""
        self.messages: defaultdict[Any, list[Any]] = defaultdict(list)
        """By group, sender, receiver and tag, in the order in which they were sent."""
        self.asked: defaultdict[Any, int] = defaultdict(int)
        """How many of them were asked for."""

    def join(self, rank: int, size: int) -> None:
        """One rank, in its turn. Join the group of all ranks."""
        store = _Store(self)
        groups: dict[str, Any] = {f"pg_{name}": {} for name in _BY_GROUP}
        # torch has no public name for a process's groups; its own tests of ranks in one process
        # replace them, too.
        own: Any = SimpleNamespace(
            default_pg=None, group_count=0, comms=[], tags_to_pg={}, store=store, **groups
        )
        c10d._world = own
        hook = sys.excepthook
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
        sys.excepthook = hook  # torch's would put a rank before each line of this process


@contextmanager
def several_ranks() -> Iterator[None]:
    """A context in which torch looks up groups by thread, and makes all of threads, those that ask
    for gloo too.
    """
    new_group = dist.new_group
    dist.new_group = lambda *args, **options: new_group(*args, **{**options, "backend": BACKEND})
    set_isolation: Any = in_c._set_thread_isolation_mode  # type: ignore[attr-defined]  # torch's types lack it
    set_isolation(True)
    try:
        yield
    finally:
        set_isolation(False)
        dist.new_group = new_group


class _Store(in_c.Store):
    """A rank's connection to what all have stored."""

    def __init__(self, world: ThreadedWorld) -> None:
        super().__init__()
        self.world, self._stored = world, world.stored

    def set(self, key: str, value: Any) -> None:
        self._stored[key] = value

    def get(self, key: str) -> bytes:
        self.world.wait_until(lambda: key in self._stored, f"{key} in the store")
        return self._stored[key]

    def add(self, key: str, value: int) -> int:
        # who asks again and again lets others go on
        self.world.wait_until(lambda: True, "another turn")
        total = int(self._stored.get(key, b"0")) + value
        self._stored[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        return self._stored.keys() >= {*keys}

    # by this name torch asks for it, from a store with a prefix
    def deleteKey(self, key: str) -> bool:
        return self._stored.pop(key, None) is not None

    delete_key = deleteKey


class _Awaited(in_c.Work):
    """A message that is waited for where it is needed."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        super().__init__()
        self._finish, self._future = finish, torch.futures.Future[Any]()

    def wait(self, timeout: Any = None) -> bool:
        if not self._future.done():
            self._future.set_result(self._finish())
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return self._future


# its methods have overloads for callers, which a rank's side needn't have
_ProcessGroup: Any = dist.ProcessGroup


class _ThreadGroup(_ProcessGroup):  # type: ignore[misc]  # it is Any
    """One rank's side of a group."""

    def __init__(self, world: ThreadedWorld, name: str, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._world, self._name, self._number = world, name, 0

    @property
    def group_name(self) -> str:  # torch sets it in C++ only
        return c10d._world.pg_names[self]

    def _meet(
        self,
        name: str,
        tensors: list[Tensor],
        outputs: list[Tensor],
        fill: Callable[[list[Any]], list[Tensor]],
    ) -> _Awaited:
        """Bring tensors to all ranks, and fill the outputs with what becomes of everyone's, in the
        order of ranks.
        """
        key = self._name, self._number
        self._number += 1
        what = " of ".join(
            [name, *(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors[:1])]
        )
        brought = self._world.brought[key]
        brought[self.rank()] = what, _copied(tensors)

        def finish() -> list[Tensor]:
            self._world.wait_until(lambda: len(brought) == self.size(), what)
            self._world.brought.pop(key, None)
            calls, given = zip(*(brought[rank] for rank in range(self.size())), strict=True)
            if len({*calls}) > 1:
                calls_of_all = "; ".join(f"rank {rank}: {call}" for rank, call in enumerate(calls))
                raise RuntimeError(
                    f"The ranks of a group have called different collectives. {calls_of_all}"
                )
            return _filled(outputs, fill([*given]))

        return _Awaited(finish)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> _Awaited:
        return self._meet("all_reduce", tensors, tensors, partial(_combined, opts))

    def reduce(self, tensors: list[Tensor], opts: Any) -> _Awaited:
        places = tensors if self.rank() == opts.rootRank else []
        return self._meet("reduce", tensors, places, partial(_combined, opts))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> _Awaited:
        return self._meet("broadcast", tensors, tensors, lambda given: given[opts.rootRank])

    def allgather(self, outputs: Any, sources: list[Tensor], opts: Any = None) -> _Awaited:
        return self._meet("all_gather", sources, outputs[0], lambda given: [own for [own] in given])

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> _Awaited:
        return self.allgather([[*output.chunk(self.size())]], [source])

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], sources: list[Tensor], opts: Any = None
    ) -> _Awaited:
        works = [self.all_gather_single(*each) for each in zip(outputs, sources, strict=True)]
        return _Awaited(lambda: [work.wait() for work in works])

    def gather(self, outputs: Any, sources: list[Tensor], opts: Any) -> _Awaited:
        return self._meet(
            "gather", sources, outputs[0] if outputs else [], lambda given: [own for [own] in given]
        )

    def scatter(self, outputs: list[Tensor], sources: Any, opts: Any) -> _Awaited:
        given = sources[0] if sources else outputs
        return self._meet(
            "scatter", given, outputs, lambda given: [given[opts.rootRank][self.rank()]]
        )

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any) -> _Awaited:
        rows = source.view(self.size(), *output.shape)
        return self._meet(
            "reduce_scatter",
            [rows],
            [output],
            lambda given: [_combined(opts, given)[0][self.rank()]],
        )

    def barrier(self, opts: Any = None) -> _Awaited:
        return self._meet("barrier", [], [], lambda given: [])

    def send(self, tensors: list[Tensor], to: int, tag: int) -> _Awaited:
        self._world.messages[self._name, self.rank(), to, tag].append(_copied(tensors))
        return _Awaited(list)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> _Awaited:
        key = self._name, source, self.rank(), tag
        messages, number = self._world.messages[key], self._world.asked[key]
        # whichever is waited for first, they come in the order in which they are asked for
        self._world.asked[key] += 1

        def finish() -> list[Tensor]:
            self._world.wait_until(lambda: len(messages) > number, f"a message from rank {source}")
            message, messages[number] = messages[number], None
            return _filled(tensors, message)

        return _Awaited(finish)

    # Their names before torch 2.13.
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced


def _copied(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _combined(opts: Any, given: list[Any]) -> list[Tensor]:
    return [_COMBINED[opts.reduceOp.op](torch.stack(every)) for every in zip(*given, strict=True)]


def _filled(outputs: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    # nothing is filled where another rank gets all
    for output, value in zip(outputs, values, strict=False):
        # what is saved for backward isn't changed by a message
        place = output if output.is_sparse else output.detach()
        place.copy_(value)
    return outputs


def _refuse(operation: str, *_: Any) -> Any:
    raise UnsupportedError(
        f"Ranks in one process have no {operation}. Run this test on ranks that are processes."
    )


for _operation in _MISSING:
    setattr(_ThreadGroup, _operation, partial(_refuse, _operation))


def _make(options: Any, _: Any) -> _ThreadGroup:
    own: Any = c10d._world
    name = f"{options.group_id} {options.global_ranks_in_group}"
    return _ThreadGroup(own.store.world, name, options.group_rank, options.group_size)


dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu"])
