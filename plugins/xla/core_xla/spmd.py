"""One process a host over all devices: XLA spreads one computation (GSPMD,
https://arxiv.org/abs/2105.04663).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from core import ConfigurationError
from core.data import map_leaves
from core_xla import library
from core_xla.hosts import Hosts
from core_xla.lazy import LazyExecution
from core_xla.mesh import DATA, XLAMesh, plan_parameters, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core import Stage
    from core_xla.mesh import Axis


class XLASPMDStrategy(LazyExecution, Hosts):
    """Trains in one process a host on all devices, along the axes of a mesh.

    The program is that of one device: a batch is the batch of all devices, of which each takes its
    part of the axis `"data"`. XLA puts in the communication. Parameters are whole on every device,
    unless options cut them.

    On several hosts each runs this program: see `Hosts`.
    """

    _always_places = True

    def __init__(
        self,
        *given: Any,
        mesh: Mapping[str, int] | None = None,
        parameter_shardings: Mapping[str, Sequence[Axis]] | None = None,
        shard_parameters: bool = False,
        auto_wrap_policy: Iterable[type[nn.Module]] | None = None,
        prefetch_batches: int = 2,
        debug: bool = False,
        **parts: Any,
    ) -> None:
        """Create the strategy.

        Args:
            given: any of `parts` without its name.
            mesh: sizes of axes by name, such as `{"data": 2, "model": 2}`, of which one may be -1:
                what the others leave. Batches are cut along `"data"`. None is one axis `"data"` of
                all devices.
            parameter_shardings: the axes along which parameters are cut, one a dimension, by a
                pattern of their names: `{"layers.*.weight": ("model", None)}`.
            shard_parameters: cut parameters, gradients and optimizer state over `"data"` too, and
                gather them where they are needed: torch_xla's FSDPv2.
            auto_wrap_policy: classes of layers that are gathered one by one then; None leaves the
                cuts to XLA.
            prefetch_batches: batches that are placed on the devices before the step asks for them,
                of loaders with workers; 0 for none.
            debug: let torch_xla tell why it cuts or compiles a graph.
            parts: `accelerator`, `parallel_devices`, `checkpoint_io`, `precision_plugin`.
        """
        super().__init__(*given, **parts)
        self.axes, self.parameter_shardings = mesh, dict(parameter_shardings or {})
        self.shard_parameters, self.auto_wrap_policy = (
            shard_parameters,
            tuple(auto_wrap_policy or ()),
        )
        self.prefetch_batches, self.debug = prefetch_batches, debug
        self._mesh: XLAMesh | None = None
        self._plans: dict[Tensor, tuple[Axis, ...]] = {}
        self._hooks: list[RemovableHandle] = []

    def check(self) -> None:
        """Refuse axes that don't make up the devices of all hosts.

        Raises:
            ConfigurationError: with the numbers.
        """
        super().check()
        sizes = sizes_of(self.axes, self.num_devices)
        if self.shard_parameters and DATA not in sizes:
            raise ConfigurationError(
                f"shard_parameters=True cuts over the axis {DATA!r}, and the mesh has "
                f"{', '.join(sizes)}. Add it to mesh=..., or leave shard_parameters out."
            )

    @property
    def mesh(self) -> XLAMesh:
        """The devices by their axes, from `setup_environment` on.

        Raises:
            ConfigurationError: before that.
        """
        if self._mesh is None:
            raise ConfigurationError(
                "The mesh is made when the devices are set up: call fabric.launch() before."
            )
        return self._mesh

    def setup_distributed(self) -> None:
        """All hosts; idempotent. Begin to use all devices at once, meet the other hosts, and lay
        out the mesh.

        Raises:
            ConfigurationError: torch_xla sees other devices than those of the run.
        """
        library.begin(len(self.parallel_devices), spmd=True, debug=self.debug)
        self.check_runtime()
        super().setup_distributed()
        if self._mesh is None or self._mesh.of_library.size() != self.num_devices:
            self._mesh = XLAMesh(sizes_of(self.axes, self.num_devices))
            library.torch_xla("distributed.spmd").set_global_mesh(self._mesh.of_library)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All hosts. Convert the module, and spread its parameters, those of host 0, over the
        devices.
        """
        self.share(module)
        model = super().setup_module(module)
        plan = plan_parameters(
            module,
            self.parameter_shardings,
            self.mesh.sizes,
            shards_over_data=self.shard_parameters,
        )
        self._plans.update(
            (parameter, plan[name]) for name, parameter in module.named_parameters() if name in plan
        )
        # By the parameter itself: what is set up twice, or tied, has one plan.
        self._spread(module.parameters())
        if self.shard_parameters:
            for layer in module.modules():
                if isinstance(layer, self.auto_wrap_policy):
                    self._gather_by_itself(layer)
        return model

    def _spread(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if (axes := self._plans.get(parameter)) is not None:
                self.mesh.spread(parameter, axes)

    def _gather_by_itself(self, layer: nn.Module) -> None:
        """Mark what torch_xla's wrapper of FSDPv2 marks: activations are cut along the batch, so
        weights must move.
        """
        self._hooks += [
            layer.register_forward_hook(self._cut_output),
            layer.register_full_backward_hook(_keep_backward_apart),
        ]

    def _cut_output(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        self.mesh.spread_batch(first)

    # data -----------------------------------------------------------------------------------------

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All hosts. Place batches, some ahead of time; hosts compare the first of each
        iteration.
        """
        placed = super().setup_dataloader(loader, stage)
        if self.num_nodes > 1:
            placed.compare = self.refuse_unlike_batches
        return placed

    def place_batch(self, batch: Any) -> Any:
        """This host. Bring a batch to the devices, each its part along the first dimension."""
        return map_leaves(self.mesh.spread_batch, super().place_batch(batch))

    # state ----------------------------------------------------------------------------------------

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """This process. Put back what `get_module_state_dict` gave, in place, and spread it
        again.
        """
        super().load_module_state_dict(module, state, strict=strict)
        self._spread(self.session.handle_of(module).module.parameters())

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """This process. Put back what `get_optimizer_state_dict` gave, and spread it as its
        parameters are.
        """
        super().load_optimizer_state_dict(optimizer, state)
        for parameter, entry in optimizer.state.items():
            axes = self._plans.get(parameter)
            if axes is None:
                continue
            for value in entry.values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    self.mesh.spread(value, axes)

    def release(self) -> None:
        """All hosts; idempotent. Forget the modules."""
        super().release()
        self._plans = {}
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _keep_backward_apart(layer: nn.Module, of_inputs: Any, of_outputs: Any) -> None:
    """Make XLA compute the gradients of a layer by themselves, and not gather for several layers at
    once.
    """
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    inputs = [gradient for gradient in of_inputs if isinstance(gradient, Tensor)]
    library.torch_xla("core.xla_model").optimization_barrier_([*gradients, *inputs])


class XLAFSDPStrategy(XLASPMDStrategy):
    """`XLASPMDStrategy` with parameters, gradients and optimizer state cut over the data axis:
    torch_xla's FSDPv2.
    """

    def __init__(self, *given: Any, shard_parameters: bool = True, **options: Any) -> None:
        """Create the strategy. Of `XLASPMDStrategy`'s options, large models need
        `auto_wrap_policy`.

        Args:
            given: parts without their names.
            shard_parameters: False leaves them whole on every device.
            options: of `XLASPMDStrategy`, and of every strategy.
        """
        super().__init__(*given, shard_parameters=shard_parameters, **options)
