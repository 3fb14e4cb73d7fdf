"""The collectives of core's contract, by Horovod's operations. Each has a name, by which Horovod
matches ranks.
"""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError, WorkerError
from core_horovod import library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from core import Collectives
    from core_horovod.rendezvous import Rendezvous

_OPERATIONS = {
    "mean": "Sum",
    "avg": "Sum",
    "sum": "Sum",
    "min": "Min",
    "max": "Max",
    "product": "Product",
}
_TRAVELS = (torch.float64, torch.float32, torch.int64, torch.int32)
_PAUSE_S = 2e-4
# Horovod's thread resizes results, and is outside of the inference mode in which they would be
# made.
_normal_tensors = torch.inference_mode(False)


class Operations:
    """Horovod's operations for one thread. All methods: all ranks, in one order.

    Args:
        name: begins the names of all operations; another one for each thread.
        rendezvous: of the ranks.
        timeout_s: seconds after which an operation that not all ranks join is an error.
        writer: the saving run, for a reader of a checkpoint.
    """

    def __init__(
        self,
        name: str,
        rendezvous: Rendezvous,
        timeout_s: float,
        writer: Mapping[str, Any] | None = None,
    ) -> None:
        self._hvd, self._name, self._rendezvous, self._timeout_s = (
            library.load(),
            name,
            rendezvous,
            timeout_s,
        )
        self.writer: Mapping[str, Any] = writer or {}
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self._num_barriers = 0

    @_normal_tensors
    def reduce(self, tensor: Tensor, operation: str) -> Tensor:
        """A tensor combined over ranks; the mean of integers is of the default float dtype.

        Raises:
            ConfigurationError: an unknown operation.
        """
        name = str(operation).lower()
        if name not in _OPERATIONS:
            raise ConfigurationError(
                f"reduce_op={operation!r}: expected one of {', '.join(map(repr, _OPERATIONS))}."
            )
        averages = _OPERATIONS[name] == "Sum" and name != "sum"
        if averages and not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.to(torch.get_default_dtype())
        source = tensor.detach()
        if source.is_complex():
            if _OPERATIONS[name] != "Sum":
                raise ConfigurationError(
                    f"reduce_op={operation!r}: Horovod has only sums and means of complex numbers."
                )
            source = torch.view_as_real(source.resolve_conj())
        # Formats that Horovod can't add travel in a wider one.
        travels = source if source.dtype in _TRAVELS else source.to(_wider(source.dtype))
        result = self._all_reduce(travels, _OPERATIONS[name])
        if averages:
            result = result / self.size
        result = result.to(source.dtype)
        return torch.view_as_complex(result) if tensor.is_complex() else result

    @_normal_tensors
    def all_gather(self, tensor: Tensor) -> Tensor:
        """Tensors of one shape, stacked by rank: shape (size, ...)."""
        if not tensor.numel():
            return torch.stack([tensor.detach()] * self.size)
        source = tensor.detach().contiguous()
        gathered = self._all_gather(source.reshape(-1).view(torch.uint8)[None])
        return gathered.view(source.dtype).reshape(self.size, *source.shape)

    @library.naming_lost_ranks()
    @_normal_tensors
    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Fill a tensor with that of rank `src`."""
        if tensor.numel():
            message = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8)
            self._wait(self._hvd.broadcast_async_(message, src, f"{self._name}.broadcast"))
            tensor.detach().copy_(message.view(tensor.dtype).reshape(tensor.shape))

    @_normal_tensors
    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`."""
        data = bytearray(pickle.dumps(obj)) if self.rank == src else bytearray()
        size = torch.tensor([len(data)])
        self.broadcast(size, src)
        message = (
            torch.frombuffer(data, dtype=torch.uint8)
            if data
            else torch.empty(int(size), dtype=torch.uint8)
        )
        self.broadcast(message, src)
        # another rank's of this run
        return obj if self.rank == src else pickle.loads(message.numpy().tobytes())

    @_normal_tensors
    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor(data.numel()))
        gathered = self._all_gather(data)
        if self.rank != dst:
            return None
        return [pickle.loads(part.numpy().tobytes()) for part in gathered.split(sizes.tolist())]

    @_normal_tensors
    def barrier(self) -> None:
        """Wait until all are here.

        Raises:
            WorkerError: a rank hasn't come in time; it is named.
        """
        self._num_barriers += 1
        point = f"{self._name}.barrier.{self._num_barriers}"
        self._rendezvous.arrive(point)
        self._all_reduce(torch.zeros(1), "Sum", "barrier", point)

    def in_background(self) -> Collectives:
        """Return these: they have a name of their own already."""
        return self

    @library.naming_lost_ranks()
    def _all_reduce(
        self, tensor: Tensor, operation: str, name: str = "reduce", point: str = ""
    ) -> Tensor:
        if not tensor.numel():
            return tensor.clone()
        result = tensor.contiguous().clone().reshape(-1)
        handle = self._hvd.allreduce_async_(
            result, name=f"{self._name}.{name}", op=getattr(self._hvd, operation)
        )
        self._wait(handle, point)
        return result.reshape(tensor.shape)

    @library.naming_lost_ranks()
    def _all_gather(self, tensor: Tensor) -> Tensor:
        gathered: Tensor = self._wait(
            self._hvd.allgather_async(tensor, name=f"{self._name}.gather")
        )
        return gathered

    def _wait(self, handle: Any, point: str = "") -> Any:
        deadline = time.monotonic() + self._timeout_s
        # Horovod's own wait runs no handlers of signals, by which a rank hears that another one has
        # failed.
        while not self._hvd.poll(handle):
            if time.monotonic() > deadline:
                absent = self._rendezvous.absent(point) if point else []
                who = (
                    f"Rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
                    if absent
                    else "A rank"
                )
                raise WorkerError(
                    f"{who} did not join the call of rank {self.rank} within "
                    f"timeout={self._timeout_s:g} s. All ranks must make the same calls: look for "
                    "a rank that hangs, or takes another way.",
                    rank=min(absent, default=self.rank),
                )
            time.sleep(_PAUSE_S)
        return self._hvd.synchronize(handle)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else torch.int64


class HorovodGather(torch.autograd.Function):
    """`all_gather`, through which gradients flow back: each rank gets the sum of what all ranks
    want of its tensor.

    Horovod's own takes the mean.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, operations: Operations) -> Tensor:
        """All ranks. Stack."""
        ctx.operations = operations
        return operations.all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """All ranks. Add up."""
        operations: Operations = ctx.operations
        return operations.reduce(gradients[0], "sum")[operations.rank], None
