"""One process a device, in torch_xla's own replication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Capability, ConfigurationError
from core.strategies import ParallelStrategy, set_within
from core_xla import in_graph, library
from core_xla.lazy import LazyExecution
from core_xla.metrics import exchange_by, gather_over_host

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn

    from core import ReduceOp

_IN_GRAPH = {
    "mean": "sum",
    "avg": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "product": "mul",
}


class XLAStrategy(LazyExecution, ParallelStrategy):
    """Data parallelism with a process for each device of XLA: gradients are averaged inside of the
    step's graph.

    Tensors of a device are combined by torch_xla in the graph, so that nothing waits. Objects, and
    tensors of the CPU, go over gloo, as under every parallel strategy.
    """

    launcher_name: str = "xla"
    start_methods: tuple[str, ...] = ("xla",)
    _keeps_gradients: bool = False
    _rows: tuple[int, ...] = ()

    def __init__(
        self,
        *given: Any,
        sync_module_states: bool = True,
        prefetch_batches: int = 2,
        debug: bool = False,
        **parts: Any,
    ) -> None:
        """Options of the strategy, and of every parallel strategy.

        Args:
            given: any of `parts` without its name.
            sync_module_states: all ranks begin with the weights of rank 0. False saves the exchange
                if all ranks build the same ones.
            prefetch_batches: batches that are on their way to the device before the step asks for
                them, of loaders with workers; 0 for none.
            debug: let torch_xla tell why it cuts or compiles a graph.
            parts: `accelerator`, `parallel_devices`, `cluster_environment`, `checkpoint_io`,
                `precision_plugin`, `timeout`.
        """
        super().__init__(*given, **{"process_group_backend": "gloo", **parts})
        self.sync_module_states = sync_module_states
        self.prefetch_batches, self.debug = prefetch_batches, debug
        self._metrics: list[Any] = []

    @property
    def capabilities(self) -> Capability:
        """Those of every parallel strategy, and accumulation without communication.

        Parameters aren't declared to be replicated: the state is handed over on the host, where
        rank 0 has all of it.
        """
        return (super().capabilities | Capability.NO_SYNC) & ~Capability.REPLICATED_PARAMETERS

    @property
    def root_device(self) -> torch.device:
        """The device of this process, which is the first one that it sees."""
        return super(ParallelStrategy, self).root_device  # as of a strategy of one process

    def setup_distributed(self) -> None:
        """All ranks; idempotent. Begin to use the device, and join the group of the same ranks.

        Raises:
            ConfigurationError: torch_xla's replication has another size, so that its collectives
                would do nothing.
        """
        library.begin(1, debug=self.debug)
        self.check_replication()
        super().setup_distributed()
        if self.world_size > 1:
            self._rows = in_graph.rows_of_ranks(self.global_rank, self.world_size)

    def check_replication(self) -> None:
        """This rank. See that torch_xla's own count of ranks is that of the run, before anything
        hangs or does nothing.

        Raises:
            ConfigurationError: it is another one.
        """
        seen = library.torch_xla("runtime").world_size()
        if seen != self.world_size:
            raise ConfigurationError(
                f"The run has {self.world_size} processes, and torch_xla counts {seen} devices in "
                "its replication: collectives would do nothing, without a word, and every rank "
                "would train a model of its own. Start the ranks by the launcher of this strategy, "
                "which is torch_xla.launch, and not by torchrun, threads or a launcher of your "
                "own; or use strategy='xla_spmd' in one process."
            )

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move the module; its weights are those of rank 0 afterwards."""
        model = super().setup_module(module)
        if self.world_size > 1 and self.sync_module_states:
            library.torch_xla("core.xla_model").broadcast_master_param(module)
            self.mark_step()
        if self.world_size > 1:
            self._metrics += exchange_by(gather_over_host, module)
        return model

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules, and give their metrics back as they were."""
        super().release()
        for metric in self._metrics:
            metric.dist_sync_fn = None
        self._metrics = []

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, and the mean of the gradients over ranks.

        What earlier backwards have left is averaged again: where it was averaged, that changes
        nothing.
        """
        super().backward(loss, module, manual=manual, **kwargs)
        if self.world_size > 1 and not self._keeps_gradients:
            owners = self.session.handles if module is None else [self.session.handle_of(module)]
            parameters = [parameter for owner in owners for parameter in owner.module.parameters()]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            library.torch_xla("core.xla_model").all_reduce(
                "sum", gradients, scale=1 / self.world_size
            )

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay local."""
        return set_within(self, "_keeps_gradients", enabled)

    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: ReduceOp | Any = "mean"
    ) -> Tensor:
        """All ranks. Combine over ranks: in the graph for a tensor of the device, over gloo for one
        of the CPU.
        """
        name = reduce_op.lower() if isinstance(reduce_op, str) else ""
        if (
            self.world_size == 1
            or group is not None
            or tensor.device.type != "xla"
            or name not in _IN_GRAPH
        ):
            return super().reduce(tensor, group, reduce_op)
        if name in ("mean", "avg") and not tensor.is_floating_point():
            tensor = tensor.float()
        combined: Tensor = library.torch_xla("core.xla_model").all_reduce(
            _IN_GRAPH[name], tensor.clone()
        )
        return combined / self.world_size if name in ("mean", "avg") else combined

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks. Stack over ranks: in the graph for a tensor of the device, over gloo for one
        of the CPU.
        """
        if self.world_size == 1 or group is not None or tensor.device.type != "xla":
            return super().all_gather(tensor, group, sync_grads)
        return in_graph.gather(
            tensor if sync_grads else tensor.detach(), self.global_rank, self._rows
        )
