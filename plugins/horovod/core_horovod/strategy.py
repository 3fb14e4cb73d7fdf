"""One replica of the model in every process, with Horovod between them."""

from __future__ import annotations

import atexit
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import torch

from core import Capability, ConfigurationError
from core.strategies import ParallelStrategy, refuse_unlike_modules
from core_horovod import library
from core_horovod.exchange import Exchange
from core_horovod.operations import HorovodGather, Operations
from core_horovod.options import Compression, HorovodOptions, Op
from core_horovod.rendezvous import Rendezvous, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import Collectives, GradientClipping, ReduceOp

_TIMEOUT = timedelta(minutes=30)


class HorovodStrategy(ParallelStrategy):
    """Data parallelism on Horovod: `hvd.DistributedOptimizer` averages gradients while backward
    runs.

    There is no process group of torch.distributed. Where `horovodrun` has started the script, its
    ranks are taken; elsewhere Horovod's runner starts them. Collectives are Horovod's operations.
    """

    launcher_name: str = "horovod"
    start_methods: tuple[str, ...] = ("horovod", *ParallelStrategy.start_methods)
    interactive_alias: str | None = "ddp_notebook"

    def __init__(
        self,
        *given: Any,
        compression: Compression = "none",
        backward_passes_per_step: int = 1,
        op: Op = "Average",
        gradient_predivide_factor: float = 1.0,
        groups: int | None = None,
        sparse_as_dense: bool = False,
        scale_learning_rate: bool = False,
        fusion_threshold_mb: int | None = None,
        cycle_time_ms: float | None = None,
        timeout: timedelta | None = _TIMEOUT,
        **parts: Any,
    ) -> None:
        """Options of Horovod's DistributedOptimizer by their own names, and of the strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            compression: format in which gradients travel: `"none"` as they are, `"fp16"` in half
                precision.
            backward_passes_per_step: number of backwards whose gradients are summed before they are
                exchanged. A step that comes earlier exchanges what there is. With a Trainer pass
                its `accumulate_grad_batches`.
            op: `"Average"`, the mean of gradients; `"Sum"`; `"Adasum"`, which needs a build of
                Horovod with MPI, and is refused here.
            gradient_predivide_factor: of `"Average"`: gradients are divided by it before they are
                added up, and by the rest of the number of ranks afterwards.
            groups: number of groups in which gradients are exchanged together; None leaves that to
                Horovod.
            sparse_as_dense: turn sparse gradients into dense ones on their way.
            scale_learning_rate: multiply the learning rate by the number of ranks, as Horovod's
                guide does by hand. It is off: a learning rate is the one that you wrote.
            fusion_threshold_mb: size up to which small tensors travel in one message, in MB; None
                is Horovod's 128.
            cycle_time_ms: time between two looks for tensors that are ready, in milliseconds; None
                is Horovod's 1.
            timeout: after which an operation that not all ranks join is an error.
            parts: of `ParallelStrategy`, such as `start_method`, the launcher where nothing has
                started the processes: `"horovod"`, Horovod's own, or `"subprocess"`, `"spawn"`,
                `"fork"`, `"forkserver"`.

        Raises:
            ConfigurationError: an option that isn't known, or a value that it can't have.
        """
        if "process_group_backend" in parts:
            raise ConfigurationError(
                "HorovodStrategy has no option 'process_group_backend': Horovod was built with "
                "what it uses, which is shown by `horovodrun --check-build`."
            )
        super().__init__(*given, timeout=timeout, **parts)
        for name, value, known in (
            ("compression", compression, get_args(Compression)),
            ("op", op, get_args(Op)),
        ):
            if value not in known:
                raise ConfigurationError(
                    f"{name}={value!r}: expected one of {', '.join(map(repr, known))}."
                )
        if backward_passes_per_step < 1:
            raise ConfigurationError(
                f"backward_passes_per_step={backward_passes_per_step}: at least 1."
            )
        if groups is not None and groups < 1:
            raise ConfigurationError(f"groups={groups}: at least 1, or None.")
        if gradient_predivide_factor != 1.0 and op != "Average":
            raise ConfigurationError(
                f"gradient_predivide_factor belongs to op='Average', and op={op!r} divides nothing."
            )
        self.options = HorovodOptions(
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            groups,
            sparse_as_dense,
        )
        self.scale_learning_rate = scale_learning_rate
        self._limit_s = (timeout or _TIMEOUT).total_seconds()
        sizes = {
            "HOROVOD_FUSION_THRESHOLD": None
            if fusion_threshold_mb is None
            else fusion_threshold_mb * 2**20,
            "HOROVOD_CYCLE_TIME": cycle_time_ms,
        }
        self._settings = {name: str(value) for name, value in sizes.items() if value is not None}
        self._operations: Operations | None = None
        self._exchange: Exchange | None = None
        self._num_backgrounds = 0
        self._rendezvous: Rendezvous | None = None
        self._is_apart = False

    @property
    def capabilities(self) -> Capability:
        """Those of every parallel strategy, accumulation without communication, and the same
        weights on all ranks.

        More than two ranks add up gradients in an order that depends on when they come, so that a
        resumed run of theirs isn't the same to the last bit. Backwards are counted, those of one
        optimizer.
        """
        own = super().capabilities | Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS
        if self.options.op != "Average":
            own &= ~Capability.WEIGHTED_LOSSES  # a weighted loss is a part of a mean over ranks
        if len(self.parallel_devices) > 2 or self.num_nodes > 1:
            own &= ~Capability.BIT_EXACT_RESUME
        if self.options.backward_passes_per_step > 1:
            own = (
                own & ~(Capability.SEVERAL_OPTIMIZERS | Capability.SEVERAL_MODULES)
                | Capability.OWNS_GRADIENTS
            )
        return own

    def check(self) -> None:
        """Refuse what this build of Horovod can't do, and a machine without Horovod.

        Raises:
            ConfigurationError: what was asked, and what can be.
            PluginLoadError: Horovod isn't installed, or can't be imported.
        """
        hvd = library.load()
        if self.options.op == "Adasum":
            why = (
                "its optimizer steps in the middle of backward, which core's loop doesn't know"
                if hvd.mpi_built()
                else "this build of Horovod has no MPI, and so no Adasum"
            )
            raise ConfigurationError(f"op='Adasum': {why}. Use op='Average', or op='Sum'.")
        formats = self.precision_plugin.formats
        if torch.bfloat16 in (formats.parameter, formats.reduce):
            raise ConfigurationError(
                f"precision={self.precision_plugin.name!r}: Horovod has no operation on bfloat16, "
                "in which gradients would be. Use 'bf16-mixed', where they are float32, or another "
                "strategy."
            )
        if self.root_device.type != "cpu" and not hvd.nccl_built():
            raise ConfigurationError(
                f"accelerator={self.root_device.type!r}: this build of Horovod has no operations "
                "for GPUs. Build it with HOROVOD_GPU_OPERATIONS=NCCL, or use accelerator='cpu'."
            )

    # processes ------------------------------------------------------------------------------------

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Initialize Horovod, and compare fingerprints.

        Raises:
            ConfigurationError: Horovod counts other ranks.
            FingerprintError: the ranks have resolved to different plugins.
            WorkerError: a rank hasn't come in time.
        """
        if self.cluster_environment is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a cluster_environment to know its ranks."
            )
        if self._operations is not None or self.world_size == 1:
            return
        if self.root_device.type == "cuda":
            torch.cuda.set_device(self.root_device)
        self._rendezvous = Rendezvous(
            self.cluster_environment, self.num_processes_per_node, self._limit_s, self._settings
        )
        atexit.register(self.leave_group)
        self._operations = Operations("core", self._rendezvous, self._limit_s)
        compare(
            self._operations.broadcast_object(
                self._operations.gather_objects(self.session.fingerprint)
            )
        )

    def leave_group(self) -> None:
        """All ranks; idempotent. End Horovod, if it was begun here."""
        atexit.unregister(self.leave_group)
        rendezvous, self._operations, self._rendezvous = self._rendezvous, None, None
        if rendezvous is not None:
            rendezvous.end()

    # modules and optimizers -----------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move the module, and begin with the weights and buffers of rank 0.

        Raises:
            ConfigurationError: a parameter is of a dtype that Horovod has no operation on.
            ModuleError: the ranks have built different modules.
        """
        refuse_unlike_modules(self, module)
        super().setup_module(module)
        for name, own in module.named_parameters():
            if own.dtype in (torch.bfloat16, torch.complex64, torch.complex128):
                raise ConfigurationError(
                    f"The parameter {name!r} is of {own.dtype}, on which Horovod has no operation. "
                    "Convert it to torch.float32, or use another strategy."
                )
        self._send_from_first([*module.parameters(), *module.buffers()])
        return self.model

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. The optimizer itself, with the options and the state of rank 0's.

        Horovod's `broadcast_optimizer_state` isn't used: where there is no state yet it makes a
        step with gradients of zero, which counts as one, and by which weights decay.

        Raises:
            ConfigurationError: learning rates are to be scaled, and a scheduler has taken note of
                them.
        """
        if self._operations is not None:
            self._send_state(optimizer, self._operations)
        if self.scale_learning_rate:
            for group in optimizer.param_groups:
                if "initial_lr" in group:
                    raise ConfigurationError(
                        "scale_learning_rate=True: a scheduler holds the learning rate as it was "
                        "written. Write lr * self.trainer.world_size in configure_optimizers "
                        "instead."
                    )
                group["lr"] *= self.world_size
        return optimizer

    def _send_state(self, optimizer: Optimizer, operations: Operations) -> None:
        if operations.rank == 0:
            groups = [
                {key: value for key, value in one.items() if key != "params"}
                for one in optimizer.param_groups
            ]
            operations.broadcast_object(
                (optimizer.state_dict() if optimizer.state else None, groups)
            )
            return
        state, groups = operations.broadcast_object(None)
        if state is not None:
            optimizer.load_state_dict(state)
        for own, first in zip(optimizer.param_groups, groups, strict=True):
            own.update(first)

    # steps ----------------------------------------------------------------------------------------

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Compute gradients; Horovod exchanges them meanwhile, unless `no_backward_sync`
        is on.

        Raises:
            ModuleError: ranks have gradients of different parameters, in a case that Horovod can't
                do.
        """
        if (exchange := self._ready()) is None:
            super().backward(loss, module, manual=manual, **kwargs)
            return
        exchange.fit(handle.module for handle in self.session.handles)
        due = exchange.prepare()
        with library.naming_lost_ranks():
            super().backward(loss, module, manual=manual, **kwargs)
        exchange.finish(due)

    def _ready(self) -> Exchange | None:
        if self._exchange is None and self._operations is not None:
            self._exchange = Exchange(self.options, self._operations)
        return self._exchange

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> Iterator[None]:
        """All ranks. A context around forward and backward in which gradients of a module stay
        local.
        """
        exchange = self._ready()
        if exchange is None or not enabled:
            yield
            return
        index = self.session.handles.index(self.session.handle_of(module))
        before = exchange.set_local(index, True)
        try:
            yield
        finally:
            exchange.set_local(index, before)

    def scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        """All ranks. Multiply gradients, after those that were held back are exchanged."""
        if self._exchange is not None:
            self._exchange.complete()
        super().scale_gradients(optimizer, factor)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip, after gradients that were held back are exchanged; see
        `Strategy.clip_gradients`.
        """
        if self._exchange is not None:
            self._exchange.complete()
        return super().clip_gradients(module, optimizer, clipping)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the user's optimizer, after gradients that were held back are
        exchanged.
        """
        if self._exchange is not None and closure is None:
            self._exchange.complete()
        self._is_apart = True
        return super().optimizer_step(optimizer, closure)

    def synchronize_model(self) -> None:
        """All ranks. Copy the buffers of rank 0: each rank has its own between two steps."""
        if self._is_apart:
            self._is_apart = False
            self._send_from_first(
                [buffer for handle in self.session.handles for buffer in handle.module.buffers()]
            )

    def _send_from_first(self, tensors: list[Tensor]) -> None:
        if self._operations is not None:
            for tensor in tensors:
                self._operations.broadcast(tensor)

    def release(self) -> None:
        """All ranks; idempotent. Forget modules and optimizers, and let Horovod forget their
        parameters.
        """
        super().release()
        self._is_apart = False
        if self._exchange is not None:
            self._exchange.forget()
            self._exchange = None

    # collectives ----------------------------------------------------------------------------------

    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean"
    ) -> Tensor:
        """All ranks. Combine over ranks; see `Strategy.reduce`. The mean of integers is of the
        default float dtype.
        """
        _refuse_group(group)
        return tensor if self._operations is None else self._operations.reduce(tensor, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks. Stack over ranks; see `Strategy.all_gather`."""
        _refuse_group(group)
        if self._operations is None:
            return tensor
        if not sync_grads:
            return self._operations.all_gather(tensor)
        stacked: Tensor = HorovodGather.apply(tensor, self._operations)  # type: ignore[no-untyped-call]  # torch's
        return stacked

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """All ranks. A tensor, or any picklable object, of rank `src`; a tensor arrives on the
        rank's own device.
        """
        if self._operations is None:
            return obj
        found = self._operations.broadcast_object(
            obj.cpu() if isinstance(obj, torch.Tensor) else obj, src
        )
        return found.to(self.root_device) if isinstance(found, torch.Tensor) else found

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All ranks. On rank `dst` everyone's picklable object, in the order of ranks; None
        elsewhere.
        """
        return [obj] if self._operations is None else self._operations.gather_objects(obj, dst)

    def barrier(self, name: str | None = None) -> None:
        """All ranks. Wait until all are here."""
        if self._operations is not None:
            self._operations.barrier()

    def background_collectives(self) -> Collectives:
        """All ranks. Operations under a name of their own, for one background thread."""
        if self._rendezvous is None:
            return super().background_collectives()
        self._num_backgrounds += 1
        name, writer = f"core.background.{self._num_backgrounds}", self.session.collectives.writer
        return Operations(name, self._rendezvous, self._limit_s, writer)


def _refuse_group(group: Any) -> None:
    if group is not None:
        raise ConfigurationError(
            "group=... is a group of torch.distributed, which Horovod doesn't know: leave it out, "
            "for all ranks, or use Horovod's own operations with a process set."
        )
