"""Collectives of a process group of the program's own, as tensors and objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor


class Collective:
    """A group of ranks and what they exchange. Meant to be subclassed.

    Each operation works in place and returns what it has filled. `setup` makes the default group where there is none,
    `create_group` one for this object, and `teardown` ends it.
    """

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def rank(self) -> int:
        """The place of this process in the group."""
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        """The number of ranks in the group."""
        raise NotImplementedError

    @property
    def group(self) -> Any:
        """The group.

        Raises:
            ConfigurationError: there is none yet.
        """
        if self._group is None:
            raise ConfigurationError(f"{type(self).__name__} has no group yet: call create_group() before.")
        return self._group

    @classmethod
    def is_available(cls) -> bool:
        """True if groups can be made."""
        raise NotImplementedError

    @classmethod
    def is_initialized(cls) -> bool:
        """True if there is a default group."""
        raise NotImplementedError

    @classmethod
    def init_group(cls, **options: Any) -> None:
        """Make the default group."""
        raise NotImplementedError

    @classmethod
    def new_group(cls, **options: Any) -> Any:
        """A new group."""
        raise NotImplementedError

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """End a group."""
        raise NotImplementedError

    def setup(self, **options: Any) -> Self:
        """All ranks. Make the default group, unless it is there."""
        if not self.is_initialized():
            self.init_group(**options)
        return self

    def create_group(self, **options: Any) -> Self:
        """All ranks. Make this object's group.

        Raises:
            ConfigurationError: it has one.
        """
        if self._group is not None:
            raise ConfigurationError(f"{type(self).__name__} has a group already: call teardown() before.")
        self._group = self.new_group(**options)
        return self

    def teardown(self) -> Self:
        """All ranks. End this object's group."""
        self.destroy_group(self.group)
        self._group = None
        return self


class TorchCollective(Collective):
    """The operations of `torch.distributed`; `op` is a name, such as `"sum"`, or one of `ReduceOp`."""

    addr_key, port_key = "MASTER_ADDR", "MASTER_PORT"

    @property
    def group(self) -> Any:
        """This object's group, else the default one."""
        return dist.GroupMember.WORLD if self._group is None else self._group

    @property
    def rank(self) -> int:
        """The place of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def world_size(self) -> int:
        """The number of ranks in the group."""
        return dist.get_world_size(self.group)

    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """Give all ranks the tensor of one."""
        dist.broadcast(tensor, src, group=self.group)
        return tensor

    def all_reduce(self, tensor: Tensor, op: Any = "sum") -> Tensor:
        """Reduce the tensors of all ranks, on all."""
        dist.all_reduce(tensor, _reduction(op), group=self.group)
        return tensor

    def reduce(self, tensor: Tensor, dst: int, op: Any = "sum") -> Tensor:
        """Reduce the tensors of all ranks, on one."""
        dist.reduce(tensor, dst, _reduction(op), group=self.group)
        return tensor

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        """Collect the tensors of all ranks, on all."""
        dist.all_gather(tensor_list, tensor, group=self.group)
        return tensor_list

    def gather(self, tensor: Tensor, gather_list: list[Tensor], dst: int = 0) -> list[Tensor]:
        """Collect the tensors of all ranks, on one."""
        dist.gather(tensor, gather_list or None, dst, group=self.group)
        return gather_list

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], src: int = 0) -> Tensor:
        """Give each rank one of the tensors of one."""
        dist.scatter(tensor, scatter_list or None, src, group=self.group)
        return tensor

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any = "sum") -> Tensor:
        """Reduce the lists of all ranks; each gets one tensor."""
        dist.reduce_scatter(output, input_list, _reduction(op), group=self.group)
        return output

    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        """Give each rank one tensor of each."""
        dist.all_to_all(output_tensor_list, input_tensor_list, group=self.group)
        return output_tensor_list

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send to a rank."""
        dist.send(tensor, dst, group=self.group, tag=tag)

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        """Receive from a rank, or from any."""
        dist.recv(tensor, src, group=self.group, tag=tag)
        return tensor

    def all_gather_object(self, object_list: list[Any], obj: Any) -> list[Any]:
        """Collect the objects of all ranks, which are pickled, on all."""
        dist.all_gather_object(object_list, obj, group=self.group)
        return object_list

    def broadcast_object_list(self, object_list: list[Any], src: int, device: Any = None) -> list[Any]:
        """Give all ranks the objects of one, which are pickled."""
        dist.broadcast_object_list(object_list, src, group=self.group, device=device)
        return object_list

    def barrier(self, device_ids: list[int] | None = None) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.group, device_ids=device_ids)

    def setup(self, main_address: str | None = None, main_port: str | None = None, **options: Any) -> Self:
        """All ranks. Make the default group, unless it is there.

        Args:
            main_address: of rank 0, where MASTER_ADDR isn't set.
            main_port: of rank 0, where MASTER_PORT isn't set.
            options: go to `torch.distributed.init_process_group`.
        """
        for key, value in ((self.addr_key, main_address), (self.port_key, main_port)):
            if value is not None:
                os.environ.setdefault(key, str(value))
        return super().setup(**options)

    @classmethod
    def is_available(cls) -> bool:
        """True if torch was built with `torch.distributed`."""
        return dist.is_available()

    @classmethod
    def is_initialized(cls) -> bool:
        """True if there is a default group."""
        return dist.is_available() and dist.is_initialized()

    @classmethod
    def init_group(cls, **options: Any) -> None:
        """Make the default group; options of `torch.distributed.init_process_group`."""
        dist.init_process_group(**options)

    @classmethod
    def new_group(cls, **options: Any) -> Any:
        """A new group; options of `torch.distributed.new_group`."""
        return dist.new_group(**options)

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """End a group."""
        if group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            dist.destroy_process_group(group)


class SingleDeviceCollective(Collective):
    """One rank, whose operations change nothing."""

    rank, world_size = 0, 1

    def broadcast(self, tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        """The tensor."""
        return tensor

    all_reduce = reduce = recv = broadcast

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], *_: Any, **__: Any) -> Tensor:
        """The one tensor."""
        return scatter_list[0]

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, **_: Any) -> list[Tensor]:
        """The tensor, alone."""
        return [tensor]

    def gather(self, tensor: Tensor, *_: Any, **__: Any) -> list[Tensor]:
        """The tensor, alone."""
        return [tensor]

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], *_: Any, **__: Any) -> Tensor:
        """The one tensor."""
        return input_list[0]

    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        """The tensors."""
        return input_tensor_list

    def send(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    barrier = send

    @classmethod
    def is_available(cls) -> bool:
        """True."""
        return True

    is_initialized = is_available

    @classmethod
    def init_group(cls, **_: Any) -> None:
        """Do nothing."""

    @classmethod
    def new_group(cls, **_: Any) -> Any:
        """A stand-in."""
        return object()

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """Do nothing."""


def _reduction(op: Any) -> Any:
    if not isinstance(op, str):
        return op
    found = getattr(dist.ReduceOp, op.upper(), None)
    if found is None:
        raise ConfigurationError(f"op={op!r}: torch.distributed.ReduceOp has no such operation.")
    return found
