"""Several processes, one device each, connected by torch.distributed."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from core.contract import Capability, ConfigurationError, Strategy
from core.strategies import process_group
from core.strategies.group_collectives import (
    GatherWithGradients,
    GroupCollectives,
    gather_objects,
)
from core.strategies.options import check_options, known_options
from core.strategies.rendezvous.barrier import barriers_of_group

if TYPE_CHECKING:
    from core.contract import Collectives
    from core.contract.world import ReduceOp

_PATIENCE = timedelta(seconds=20)
"""With ranks that don't come to a point, unless the limit of collectives is near."""
_OPERATIONS = {
    "mean": dist.ReduceOp.AVG,
    "avg": dist.ReduceOp.AVG,
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


class ParallelStrategy(Strategy):
    """One process a device, in one process group of torch.distributed. Meant to be subclassed.

    A subclass overrides `setup_module` to wrap the module, and all else that its wrapper does
    differently. All collectives work on tensors of any device; gloo, NCCL and every other backend
    of torch serve.
    """

    launcher_name: str = "subprocess"
    start_methods: tuple[str, ...] = ("subprocess", "spawn", "fork", "forkserver")
    """The launchers that the user may choose by `start_method`."""

    def __init__(
        self,
        *given: Any,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str | None = None,
        **parts: Any,
    ) -> None:
        """The options of every parallel strategy. A subclass adds its own, and hands on the rest.

        Args:
            given: any of `parts` without its name.
            process_group_backend: `"gloo"`, `"nccl"` or another one of torch; None asks the
                accelerator.
            timeout: after which a collective that not all ranks join is an error; None is torch's
                own for the backend: 10 minutes for NCCL, 30 for others. Ranks have ten minutes for
                the start of the group then.
            start_method: way to start processes if no cluster has: `"subprocess"` runs the script
                again, `"spawn"`, `"fork"` and `"forkserver"` call the function in new processes.
                None is the class's `launcher_name`.
            parts: `accelerator`, `parallel_devices`, `cluster_environment`, `checkpoint_io`,
                `precision_plugin`.

        Raises:
            ConfigurationError: an option that no constructor of the class and its bases names, an
                unknown `start_method`, or a `timeout` that is no duration.
        """
        check_options(type(self).__name__, parts, known_options(type(self)))
        super().__init__(*given, **parts)
        if start_method is not None:
            if start_method not in self.start_methods:
                expected = ", ".join(map(repr, self.start_methods))
                raise ConfigurationError(
                    f"start_method={start_method!r}: expected one of {expected}."
                )
            self.launcher_name = start_method
        if timeout is not None and getattr(timeout, "total_seconds", float)() <= 0:
            raise ConfigurationError(
                f"timeout={timeout!r}: expected a positive datetime.timedelta, or None."
            )
        self._process_group_backend = process_group_backend
        self._group_timeout = timeout

    # Defaults for a subclass that leaves out super().__init__().
    _process_group_backend: str | None = None
    _group_timeout: timedelta | None = None
    _owns_group: bool = False

    @property
    def capabilities(self) -> Capability:
        """The capabilities of one process, and collectives."""
        return super().capabilities | Capability.COLLECTIVES

    @property
    def _timeout(self) -> timedelta:
        """Of all that isn't a collective on the devices."""
        return self._group_timeout or default_pg_timeout

    @property
    def process_group_backend(self) -> str:
        """The user's choice, or the accelerator's, or torch's own for the device."""
        return (
            self._process_group_backend
            or self.accelerator.process_group_backend
            or dist.get_default_backend_for_device(self.parallel_devices[0])
        )

    def check(self) -> None:
        """Refuse a device that torch has no backend for, and a backend that this build of torch
        doesn't have.

        Raises:
            ConfigurationError: with what fits.
        """
        if any(device.type == "mps" for device in self.parallel_devices):
            raise ConfigurationError(
                f"{type(self).__name__} can't train on mps: no backend of torch's process groups "
                "takes tensors there, and such a machine has one GPU. Leave strategy out, or pass "
                "accelerator='cpu'."
            )
        # A backend may be named for each kind of device, as in "cpu:gloo,cuda:nccl".
        names = [part.rpartition(":")[2] for part in self.process_group_backend.lower().split(",")]
        for name in names:
            if not dist.is_backend_available(name):
                there = filter(dist.is_backend_available, dist.Backend.backend_list)
                raise ConfigurationError(
                    f"process_group_backend={self.process_group_backend!r}: this torch "
                    f"{torch.__version__} has no backend {name!r}; it has "
                    f"{', '.join(map(repr, there))}. (torch's wheels have no MPI: that takes a "
                    "torch that was built from source with it.)"
                )

    @property
    def num_processes_per_node(self) -> int:
        """One for each device."""
        return max(1, len(self.parallel_devices))

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Select the device, compare fingerprints, then join the process
        group.

        Raises:
            ConfigurationError: this process is in a group of another size.
            DeviceError: the device can't be used.
            FingerprintError: the ranks have resolved to different plugins.
        """
        if self.cluster_environment is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a cluster_environment to know its ranks. Pass one."
            )
        if process_group.join(
            self.cluster_environment,
            backend=self.process_group_backend,
            device=self.root_device,
            select_device=lambda: self.accelerator.setup_device(self.root_device),
            timeout=self._group_timeout,
            fingerprint=self.session.fingerprint,
        ):
            self._owns_group = True
            atexit.register(self.leave_group)

    @property
    def root_device(self) -> torch.device:
        """The one of this node's devices that belongs to this rank."""
        return self._device_at(self.local_rank)

    @property
    def world_size(self) -> int:
        """Number of processes."""
        # Not asked of the group: it is known before there is one, and after it was left.
        return self.num_processes_per_node * self.num_nodes

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        if self.cluster_environment is None:
            return 0
        return self.cluster_environment.global_rank()

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        if self.cluster_environment is None:
            return 0
        return self.cluster_environment.local_rank()

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        if self.cluster_environment is None:
            return 0
        return self.cluster_environment.node_rank()

    def reduce(
        self, tensor: torch.Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean"
    ) -> torch.Tensor:
        """All ranks. Combine over ranks; see `Strategy.reduce`. The mean of integers is of the
        default float dtype.

        Raises:
            ConfigurationError: an unknown `reduce_op`, or a sparse tensor.
        """
        operation: Any = reduce_op
        if isinstance(reduce_op, str):
            operation = _OPERATIONS.get(reduce_op.lower())
        if operation is None:
            raise ConfigurationError(
                f"reduce_op={reduce_op!r}: expected one of {', '.join(map(repr, _OPERATIONS))}."
            )
        if not self._is_connected():
            return tensor
        if tensor.layout != torch.strided:
            raise ConfigurationError(
                f"reduce combines dense tensors, and this one has the layout {tensor.layout}. Pass "
                "tensor.to_dense(); build layers with sparse gradients, such as nn.Embedding, with "
                "sparse=False."
            )
        averages = operation == dist.ReduceOp.AVG
        if averages and not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.to(torch.get_default_dtype())
        summed, divides = tensor, averages and dist.get_backend(group) != "nccl"
        if divides:  # others have no average
            operation = dist.ReduceOp.SUM
            if tensor.dtype == torch.float16:
                summed = tensor.float()  # the sum of some hundred ranks would be infinite
        # A copy: all_reduce works in place.
        result = self._to_group(summed, copy=True)
        dist.all_reduce(result, op=operation, group=group)
        if divides:
            result /= dist.get_world_size(group)
        return result.to(tensor.device, tensor.dtype)

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """All ranks. Stack over ranks; see `Strategy.all_gather`."""
        if not self._is_connected():
            return tensor
        here = self._to_group(tensor)
        if not sync_grads:
            here = here.detach()
        stacked: torch.Tensor = GatherWithGradients.apply(here, group)  # type: ignore[no-untyped-call]  # torch's
        return stacked.to(tensor.device)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """All ranks. A tensor, or any picklable object, of rank `src`; a tensor arrives on the
        rank's own device.
        """
        if not self._is_connected():
            return obj
        # Objects travel as tensors of bytes. A plain tensor has its bytes already, and is announced
        # as an empty one.
        device = self._group_device
        is_plain = (
            type(obj) is torch.Tensor and obj.layout == torch.strided and not obj.requires_grad
        )
        box: list[Any] = [(False, obj)]
        if is_plain:
            box = [(True, (obj.shape, obj.dtype))]
        elif isinstance(obj, torch.Tensor):
            box = [(False, obj.cpu())]  # a pickled one would come back on the sender's device
        dist.broadcast_object_list(box, src=src, device=device)
        travels_alone, content = box[0]
        if travels_alone:
            if self.global_rank == src:
                elements = obj.to(device).resolve_conj().resolve_neg().contiguous()
                content = obj
            else:
                shape, dtype = content
                content = elements = torch.empty(shape, dtype=dtype, device=device)
            if elements.numel():  # as bytes: gloo doesn't know every dtype
                dist.broadcast(elements.view(-1).view(torch.uint8), src=src)
        if isinstance(content, torch.Tensor):
            return content.to(self.root_device)
        return content

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All ranks. On rank `dst` everyone's picklable object, in the order of ranks; None
        elsewhere.
        """
        if not self._is_connected():
            return [obj]
        return gather_objects(obj, dst)

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all are here; with gloo, the ranks that don't come in time are
        named.
        """
        if not self._is_connected():
            return
        # Only gloo has a barrier that knows who is missing.
        if dist.get_backend() == "gloo":
            dist.monitored_barrier(timeout=self._timeout, wait_all_ranks=True)
        # Without its device, torch guesses one by the rank, and warns.
        elif self.root_device.type != "cpu":
            dist.barrier(device_ids=[self.root_device.index or 0])
        else:
            dist.barrier()

    def absent_ranks(self, point: str) -> list[int]:
        """Any ranks. Those that don't come to a point within a part of `timeout`; see
        `Strategy.absent_ranks`.
        """
        # One minute of torch's half an hour: long before a collective that waits for the same ranks
        # ends the process.
        patience = max(self._timeout / 30, min(self._timeout / 3, _PATIENCE))
        if not self._is_connected():
            return []
        return barriers_of_group().absent_at(point, patience)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """All ranks. True if all say so, or with `all=False` if any does."""
        # Yes is 1 and no is 0: the minimum says whether all agree, the maximum whether any does.
        reduce_op: ReduceOp = "min"
        if not all:
            reduce_op = "max"
        vote = torch.tensor(int(decision), device=self.root_device)
        return bool(self.reduce(vote, reduce_op=reduce_op).item())

    def background_collectives(self) -> Collectives:
        """All ranks. A group of its own, over gloo, for one background thread."""
        if not self._is_connected():
            return super().background_collectives()
        group = dist.new_group(backend="gloo", timeout=self._timeout)
        return GroupCollectives(group, self.session.collectives.writer)

    def teardown(self) -> None:
        """All ranks; idempotent, also after an exception. Leave the group, if it was made here."""
        super().teardown()
        self.leave_group()

    def leave_group(self) -> None:
        """All ranks; idempotent. Leave the group, if it was made here. A strategy whose modules
        need it may stay.

        Happens at exit too: the strategy that made the group lives until it has left it.
        """
        atexit.unregister(self.leave_group)
        if self._owns_group:
            process_group.leave()
            self._owns_group = False

    def _is_connected(self) -> bool:
        return self.world_size > 1 and dist.is_initialized()

    @property
    def _group_device(self) -> torch.device:
        """The device from which objects, and tensors of other devices, go through the group.

        That of this rank; the CPU where the backend can't send from there, and with gloo, which
        copies there anyway.
        """
        if dist.get_backend() != "gloo" and self._sends_from(self.root_device):
            return self.root_device
        return torch.device("cpu")

    @staticmethod
    def _sends_from(device: torch.device) -> bool:
        backend = dist.get_backend()
        return device.type in dist.Backend.backend_capability.get(backend, [device.type])

    def _to_group(self, tensor: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
        """`tensor` on a device that the backend can send from, contiguous."""
        device = tensor.device
        if not self._sends_from(device):
            device = self._group_device
        return tensor.to(device, copy=copy).contiguous()
