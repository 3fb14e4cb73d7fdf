"""The process group `hccl`, and what it can't do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from core import ConfigurationError, WorkerError
from core.strategies import ParallelStrategy
from core_hpu import vendor

if TYPE_CHECKING:
    from torch import Tensor

BACKEND = "hccl"
# https://docs.habana.ai/en/latest/API_Reference_Guides/HCCL_APIs/C_API.html
_REDUCED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.int32})
_REDUCED_BY = frozenset({"mean", "avg", "sum", "min", "max"})
_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "HLS_MODULE_ID", "ID")


class HCCLStrategy(ParallelStrategy):
    """One process a Gaudi device, in a process group over HCCL. Meant to be subclassed.

    HCCL sums and compares float32, 16-bit floats and int32. Everything else is gathered, and
    combined on the CPU.
    """

    interactive_alias: str | None = None
    _variables: dict[str, str | None] | None = None
    _num_barriers: int = 0

    def check(self) -> None:
        """Refuse other process groups, which know nothing of these devices.

        Raises:
            ConfigurationError: with the one that does.
            DeviceError: the vendor's library can't be imported.
        """
        if BACKEND not in self.process_group_backend:
            raise ConfigurationError(
                f"process_group_backend={self.process_group_backend!r} can't send from a Gaudi "
                f"device. Leave it out, or use {BACKEND!r}."
            )
        vendor.load("distributed.hccl")
        super().check()

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Set for the vendor's library which process this is, then join the
        group.

        By that it chooses the device of the process: the module with the number of the local rank,
        or the one at that place in `HABANA_VISIBLE_MODULES`.
        """
        if self.cluster_environment is not None and self._variables is None:
            self._variables = {name: os.environ.get(name) for name in _VARIABLES}
            vendor.load("distributed.hccl").initialize_distributed_hpu(
                world_size=self.world_size, rank=self.global_rank, local_rank=self.local_rank
            )
        super().setup_distributed()

    def reduce(self, tensor: Tensor, group: Any = None, reduce_op: Any = "mean") -> Tensor:
        """All ranks. Combine over ranks; see `Strategy.reduce`."""
        name = reduce_op.lower() if isinstance(reduce_op, str) else None
        averages_integers = name in ("mean", "avg") and not tensor.is_floating_point()
        if (
            self.world_size == 1
            or name is None
            or name not in (*_REDUCED_BY, "product")
            or (name in _REDUCED_BY and tensor.dtype in _REDUCED_DTYPES)
        ):
            return super().reduce(tensor, group, reduce_op)
        if averages_integers and torch.get_default_dtype() in _REDUCED_DTYPES:
            return super().reduce(tensor, group, reduce_op)  # as floats
        return _combine(self.all_gather(tensor, group).detach().cpu(), name).to(tensor.device)

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All ranks. On rank `dst` everyone's picklable object; HCCL can gather on all ranks
        only.
        """
        if self.world_size == 1:
            return [obj]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, obj)
        return gathered if self.global_rank == dst else None

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all are here.

        Raises:
            WorkerError: the group has run out of time; names who didn't come.
        """
        self._num_barriers += 1
        try:
            super().barrier(name)
        except RuntimeError as error:
            absent = self.absent_ranks(f"barrier {self._num_barriers}")
            if not absent:
                raise
            who = ", ".join(map(str, absent))
            raise WorkerError(
                f"Rank {who} did not come to the barrier{f' {name!r}' if name else ''} in time.",
                rank=absent[0],
            ) from error

    def leave_group(self) -> None:
        """All ranks; idempotent. Leave the group, and put back the variables that were set for
        it.
        """
        super().leave_group()
        vendor.put_back(self._variables or {})
        self._variables = None


def _combine(stacked: Tensor, name: str) -> Tensor:
    """Values of all ranks, shape (world_size, ...), combined to shape (...), without a change of
    dtype.
    """
    if name in ("mean", "avg"):
        floating = stacked if stacked.is_floating_point() else stacked.to(torch.get_default_dtype())
        return floating.mean(0)
    if name == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if name == "product":
        return stacked.prod(0, dtype=stacked.dtype)
    return stacked.amin(0) if name == "min" else stacked.amax(0)
