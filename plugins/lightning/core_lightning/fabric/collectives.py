"""Collectives of a process group of the program's own, as tensors and objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import torch.distributed as dist

from core import ConfigurationError

_IN_PLACE = (
    "broadcast", "all_reduce", "reduce", "all_gather", "scatter", "reduce_scatter", "all_to_all",
    "recv", "all_gather_object", "broadcast_object_list",
)  # fmt: skip
"""Operations that fill their first argument, and return it here."""


class Collective:
    """A group of ranks and what they exchange; see `torch.distributed`.

    `setup` makes the default group where there is none, `create_group` one for this object, and
    `teardown` ends it. Subclasses have `is_available`, `is_initialized`, `init_group`, `new_group`
    and `destroy_group`, of groups.
    """

    is_available: Any
    is_initialized: Any
    init_group: Any
    new_group: Any
    destroy_group: Any
    _group: Any = None

    @property
    def group(self) -> Any:
        """This object's group."""
        return self._group

    def setup(self, **options: Any) -> Self:
        """All ranks. Make the default group, unless it is there."""
        if not self.is_initialized():
            self.init_group(**options)
        return self

    def create_group(self, **options: Any) -> Self:
        """All ranks. Make this object's group, of which it has one at a time."""
        if self._group is not None:
            raise ConfigurationError(
                f"{type(self).__name__} has a group already: call teardown() before."
            )
        self._group = self.new_group(**options)
        return self

    def teardown(self) -> Self:
        """All ranks. End this object's group."""
        self.destroy_group(self.group)
        self._group = None
        return self


class TorchCollective(Collective):
    """The operations of `torch.distributed`, in the group; `op` may be a name, such as `"sum"`."""

    addr_key, port_key = "MASTER_ADDR", "MASTER_PORT"
    is_available, is_initialized = (
        staticmethod(dist.is_available),
        staticmethod(dist.is_initialized),
    )
    init_group, new_group = staticmethod(dist.init_process_group), staticmethod(dist.new_group)
    rank = property(
        lambda self: dist.get_rank(self.group), doc="The place of this process in the group."
    )
    world_size = property(
        lambda self: dist.get_world_size(self.group), doc="The number of ranks in the group."
    )

    @property
    def group(self) -> Any:
        """This object's group, else the default one."""
        return dist.GroupMember.WORLD if self._group is None else self._group

    @staticmethod
    def destroy_group(group: Any) -> None:
        """End a group."""
        if group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            dist.destroy_process_group(group)

    def setup(
        self, main_address: str | None = None, main_port: str | None = None, **options: Any
    ) -> Self:
        """All ranks. Make the default group by `torch.distributed.init_process_group`, unless it is
        there.

        Address and port are those of rank 0, where MASTER_ADDR and MASTER_PORT aren't set.
        """
        for key, value in ((self.addr_key, main_address), (self.port_key, main_port)):
            if value is not None:
                os.environ.setdefault(key, str(value))
        return super().setup(**options)

    def gather(self, tensor: Any, gather_list: list[Any], dst: int = 0) -> list[Any]:
        """Collect the tensors of all ranks, on one."""
        dist.gather(tensor, gather_list or None, dst, group=self.group)
        return gather_list

    def send(self, tensor: Any, dst: int, tag: int = 0) -> None:
        """Send to a rank."""
        dist.send(tensor, dst, group=self.group, tag=tag)

    def barrier(self, device_ids: list[int] | None = None) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.group, device_ids=device_ids)


class SingleDeviceCollective(Collective):
    """One rank: operations return what they are given."""

    rank, world_size = 0, 1
    is_available = is_initialized = staticmethod(lambda: True)
    init_group = destroy_group = staticmethod(lambda *_, **__: None)
    new_group = staticmethod(lambda **_: object())

    def all_gather(self, tensor_list: list[Any], tensor: Any, **_: Any) -> list[Any]:
        """The tensor, alone."""
        return [tensor]

    def gather(self, tensor: Any, *_: Any, **__: Any) -> list[Any]:
        """The tensor, alone."""
        return [tensor]

    def scatter(self, tensor: Any, scatter_list: list[Any], *_: Any, **__: Any) -> Any:
        """The one tensor of the list."""
        return scatter_list[0]

    reduce_scatter = scatter

    def all_to_all(
        self, output_tensor_list: list[Any], input_tensor_list: list[Any], **_: Any
    ) -> list[Any]:
        """The tensors."""
        return input_tensor_list

    def send(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    barrier = send


def _of_torch(name: str) -> Callable[..., Any]:
    def operation(self: TorchCollective, filled: Any, *arguments: Any, **options: Any) -> Any:
        if "reduce" in name:  # a name of what is reduced to
            arguments = tuple(map(_reduction, arguments))
            options |= {"op": _reduction(options["op"])} if "op" in options else {}
        getattr(dist, name)(filled, *arguments, group=self.group, **options)
        return filled

    operation.__name__, operation.__doc__ = (
        name,
        f"See `torch.distributed.{name}`; the first argument is returned.",
    )
    return operation


def _alone(self: SingleDeviceCollective, filled: Any, *_: Any, **__: Any) -> Any:
    return filled


def _reduction(op: Any) -> Any:
    if not isinstance(op, str):
        return op
    found = getattr(dist.ReduceOp, op.upper(), None)
    if found is None:
        raise ConfigurationError(f"op={op!r}: torch.distributed.ReduceOp has no such operation.")
    return found


for _name in _IN_PLACE:
    setattr(TorchCollective, _name, _of_torch(_name))
    if _name not in vars(SingleDeviceCollective):
        setattr(SingleDeviceCollective, _name, _alone)
