"""Parameters, gradients and optimizer state cut into shards, one on each rank; gathered unit by
unit when needed.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020;
Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.
"""

from __future__ import annotations

import atexit
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from torch.distributed.tensor import DTensor

from core import Capability, ConfigurationError
from core.precision import kept_in_float32
from core.session import ReplacedParameters
from core.strategies import refuse_unlike_modules
from core_fsdp import cutting, forward, mesh, options, wrapping
from core_fsdp import state as states
from core_fsdp.initialization import InitialWeights
from core_fsdp.left_out import LeftOutOfUnits
from core_fsdp.precision import DTYPES, SetsPolicy, ShardedMixedPrecision
from core_fsdp.sharded_steps import ShardedSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager

    from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, StateDictType

    from core import Precision
    from core_fsdp.wrapping import Policy


class FSDPStrategy(ShardedSteps):
    """Sharded data parallelism with torch's `fully_shard` (FSDP2), on one node or several.

    Parameters become DTensors in place: names and shapes stay, and the user's module is the wrapped
    one.
    """

    takes_policies = True
    """Parameters are gathered as a precision says that has a `policy`, see `SetsPolicy`."""
    data_axes: tuple[str, ...] = ("data_parallel",)
    """Names of the axes of `device_mesh` over which the data is split: replicas (if there are any),
    then shards.
    """

    def __init__(
        self,
        *given: Any,
        cpu_offload: bool | CPUOffload | CPUOffloadPolicy | None = None,
        mixed_precision: MixedPrecision | MixedPrecisionPolicy | None = None,
        auto_wrap_policy: Policy | None = "units",
        activation_checkpointing: bool | set[type[nn.Module]] | None = None,
        activation_checkpointing_policy: Policy | None = None,
        sharding_strategy: str | ShardingStrategy | None = None,
        state_dict_type: str | StateDictType | None = None,
        use_orig_params: bool = True,
        limit_all_gathers: bool = True,
        sync_module_states: bool = True,
        forward_prefetch: bool = False,
        device_mesh: tuple[int, int] | DeviceMesh | None = None,
        **others: Any,
    ) -> None:
        """Options of the strategy, and of every parallel strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            cpu_offload: let shards, their gradients and the optimizer rest in the memory of the
                CPU.
            mixed_precision: formats of gathered parameters and of the reduction, by module; instead
                of `precision=`.
            auto_wrap_policy: which layers are units, that are gathered and freed together:
                `"units"`, the model's repeated blocks, as `core.strategies.find_units` finds them;
                a set of classes, a function `(module) -> bool`, or one of torch's wrap policies.
                None makes the whole module one unit, and so does `"units"` if no blocks repeat.
            activation_checkpointing: compute activations of the units (True), or of layers of these
                classes, again in backward.
            activation_checkpointing_policy: which ones, as in `auto_wrap_policy`.
            sharding_strategy: `"FULL_SHARD"`, which None means too; `"SHARD_GRAD_OP"` keeps
                gathered parameters from forward to backward; `"NO_SHARD"` replicates;
                `"HYBRID_SHARD"` shards within a node and replicates over nodes.
            state_dict_type: in which form a checkpoint is handed over, `"full"` or `"sharded"`;
                None asks the CheckpointIO.
            use_orig_params: either way parameters keep their names and shapes: nothing is laid out
                flat.
            limit_all_gathers: always so.
            sync_module_states: begin with rank 0's weights and buffers on all ranks.
            forward_prefetch: gather the next unit, in the order of registration, before the running
                one is done.
            device_mesh: for hybrid sharding `(replicas, shards)`, or a mesh with these two axes.
            others: of `ParallelStrategy` (`start_method`, `process_group_backend`, `timeout`,
                `parallel_devices`, ...).

        Raises:
            ConfigurationError: an unknown option, or one that FSDP2 doesn't have.
        """
        options.refuse_gone(type(self).__name__, others, limit_all_gathers=limit_all_gathers)
        super().__init__(*given, **others)
        self.sharding = options.parse_sharding(sharding_strategy)
        self.cpu_offload = options.parse_offload(cpu_offload)
        self.mixed_precision, self._buffer_dtype = options.parse_mixed_precision(mixed_precision)
        self.state_dict_type = options.parse_state_dict_type(state_dict_type)
        self.auto_wrap_policy = auto_wrap_policy
        self.activation_checkpointing = activation_checkpointing
        self.activation_checkpointing_policy = activation_checkpointing_policy
        if activation_checkpointing or activation_checkpointing_policy is not None:
            self.own_activation_option = "activation_checkpointing"
        self._undo_checkpointing: list[Callable[[], None]] = []
        self.sync_module_states = sync_module_states
        self.forward_prefetch = forward_prefetch
        self._mesh_option = device_mesh
        self._replaced = ReplacedParameters(states.placed_state)
        self._left_out = LeftOutOfUnits(self)
        self._lacking = []

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, accumulation without communication, and
        state in shards.

        No inference mode: parameters that are gathered in evaluation may be kept for training.
        """
        own = super().capabilities & ~Capability.INFERENCE_MODE
        return own | Capability.NO_SYNC | Capability.SHARDED_STATE

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. All have alike what isn't cut, and those with the same shards these."""
        return ()

    def configure_precision(self, name: str) -> Precision | None:
        """The mixed ones are sharded: parameters are gathered in 16 bits."""
        return ShardedMixedPrecision(DTYPES[name]) if name in DTYPES else None

    @property
    def process_group_backend(self) -> str:
        """The backend of every parallel strategy; shards on the CPU of a GPU's rank need one for
        each device.
        """
        backend = super().process_group_backend
        if (
            self.cpu_offload
            and self._process_group_backend is None
            and self.parallel_devices[0].type != "cpu"
        ):
            return f"cpu:gloo,{self.parallel_devices[0].type}:{backend}"
        return backend

    def check(self) -> None:
        """Refuse options that contradict each other or the number of processes.

        Raises:
            ConfigurationError: with what fits.
        """
        super().check()
        self.mesh_shape()
        if self.mixed_precision is not None and isinstance(self.precision_plugin, SetsPolicy):
            raise ConfigurationError(
                f"mixed_precision and precision={self.precision_plugin.name!r} both say in which "
                "formats to compute. Keep one: precision= is autocast with sharded parameters, "
                "mixed_precision= casts module by module."
            )
        layout = self.checkpoint_io.layout
        if self.state_dict_type not in (None, layout):
            raise ConfigurationError(
                f"state_dict_type={self.state_dict_type!r}, and "
                f"{type(self.checkpoint_io).__name__} stores the {layout} form. Leave "
                "state_dict_type out, or pass a checkpoint_io that stores the other form."
            )

    def mesh_shape(self) -> tuple[int, ...]:
        """Sizes of the axes of `device_mesh`.

        Raises:
            ConfigurationError: they don't make up the number of processes.
        """
        if not self.sharding.replicates:
            return (self.world_size,)
        if self.sharding.name == "NO_SHARD":
            return (self.world_size, 1)
        given = self._mesh_option
        if given is None:
            return (self.num_nodes, self.num_processes_per_node)
        shape = tuple(given.shape) if isinstance(given, DeviceMesh) else tuple(given)
        if len(shape) != 2 or shape[0] * shape[1] != self.world_size:
            raise ConfigurationError(
                f"device_mesh={shape}: expected (replicas, shards) whose product is the number of "
                f"processes, {self.world_size}."
            )
        return shape

    # environment ----------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """All ranks. Join the group and lay out the mesh."""
        super().setup_environment()
        if self.device_mesh is None:
            self.device_mesh = self.configure_device_mesh()

    def configure_device_mesh(self) -> DeviceMesh:
        """All ranks. The mesh of all processes. Override to lay it out otherwise."""
        if isinstance(self._mesh_option, DeviceMesh):
            return self._mesh_option
        shape = self.mesh_shape()
        names = (
            self.data_axes
            if len(shape) == 1
            else ("data_parallel_replicate", "data_parallel_shard")
        )
        return mesh.lay_out(self.root_device.type, shape, names)

    @property
    def sharding_mesh(self) -> DeviceMesh:
        """The part of the mesh over which `fully_shard` works: one axis, or replicas and shards."""
        assert self.device_mesh is not None, "setup_environment has laid it out"
        return self.device_mesh

    @property
    def parameter_device(self) -> torch.device:
        """The device on which shards rest between steps."""
        return torch.device("cpu") if self.cpu_offload else self.root_device

    # module ---------------------------------------------------------------------------------------

    def init_context(self, *, empty: bool = False) -> AbstractContextManager[Any]:
        """All ranks. A context in which a model is built on the CPU; units go to the device when
        they are cut.

        Args:
            empty: build it on meta, without memory; `setup_module` gives memory to shards only, and
                values from each submodule's `reset_parameters()`.
        """
        return self._built_on(torch.device("meta") if empty else torch.device("cpu"))

    @contextmanager
    def _built_on(self, device: torch.device) -> Iterator[None]:
        precision = self.precision_plugin.init_context() or nullcontext()
        with device, precision:
            yield

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Cut the module into shards, in place. One that is sharded already stays so.

        Raises:
            ModuleError: a parameter can't be sharded, has a hook, or isn't where others are, or
                ranks have built different modules.
        """
        if units := wrapping.sharded_units(module):
            forward.reshard(units)
            if self.world_size > 1:
                wrapping.check_all_sharded(module)
            self.model = module
            cutting.let_replace(module)
            self._replaced.remember(module)
            self._checkpoint_activations(module)
            self._finish(module, None)
            return self.model
        # What the first weights are is settled before anything is converted or cut; `_finish` fills
        # the shards.
        wrapping.check_parameters(module)
        wrapping.check_hooks(module)
        refuse_unlike_modules(self, module)
        weights = InitialWeights(module, self, synchronizes=self.sync_module_states)
        self.model = self.precision_plugin.convert_module(module)
        self._replaced.remember(module)
        if isinstance(self.precision_plugin, SetsPolicy):
            self.precision_plugin.wrap_weights(module, self.sharding_mesh)
        self._checkpoint_activations(module)
        self.configure_sharding(module)
        wrapping.check_formats(module)
        self._finish(module, weights)
        return self.model

    def configure_fsdp_auto_wrap_policy(self, module: nn.Module) -> Policy | None:
        """All ranks. The policy that selects the layers that are units. Override to decide by the
        module.
        """
        return self.auto_wrap_policy

    def configure_sharding(self, module: nn.Module) -> None:
        """All ranks. Call `fully_shard` on the units and on the module itself. Override to do so by
        hand.
        """
        policy = self.configure_fsdp_auto_wrap_policy(module)
        chosen = wrapping.choose_modules(module, policy, "auto_wrap_policy")
        beside = wrapping.planned_beside(module, chosen) if policy == "units" else []
        units = wrapping.units_of(module, [*beside, *chosen])
        cutting.cut(
            module,
            units,
            self.sharding,
            mesh=self.sharding_mesh,
            mp_policy=self._policy(),
            offload_policy=self._offload(),
            kept=self._kept(module, self._policy().param_dtype).values(),
        )
        if self.forward_prefetch:
            forward.prefetch_forward(wrapping.sharded_units(module))

    def _kept(self, module: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """The tensors that are in float32 where others are in `dtype`, or as the precision stores
        them.
        """
        return kept_in_float32(module, dtype or self.precision_plugin.formats.parameter)

    def _policy(self) -> MixedPrecisionPolicy:
        if self.mixed_precision is not None:
            return self.mixed_precision
        own = self.precision_plugin
        return own.policy if isinstance(own, SetsPolicy) else MixedPrecisionPolicy()

    def _offload(self) -> OffloadPolicy:
        return (
            CPUOffloadPolicy(pin_memory=self.root_device.type == "cuda")
            if self.cpu_offload
            else OffloadPolicy()
        )

    def _checkpoint_activations(self, module: nn.Module) -> None:
        chosen = self.activation_checkpointing
        policy = self.activation_checkpointing_policy
        if chosen is False or (chosen is None and policy is None):
            return
        if policy is None:
            policy = (
                self.configure_fsdp_auto_wrap_policy(module) if isinstance(chosen, bool) else chosen
            )
        self._undo_checkpointing.append(wrapping.checkpoint_activations(module, policy))

    def _finish(self, module: nn.Module, weights: InitialWeights | None) -> None:
        if self.world_size > 1:
            self._left_out.watch(wrapping.sharded_units(module))
        if weights is not None:
            weights.fill(self.parameter_device)
            self._lacking += weights.lacking
        self.module_to_device(module)
        if self._buffer_dtype is not None:
            kept = {id(one) for one in self._kept(module, self._buffer_dtype).values()}
            for buffer in module.buffers():
                if buffer.is_floating_point() and id(buffer) not in kept:
                    buffer.data = buffer.to(self._buffer_dtype)

    def module_to_device(self, module: nn.Module) -> None:
        """All ranks. Move what isn't sharded to `root_device`: shards are where they have to be."""
        if not wrapping.is_sharded(module):
            super().module_to_device(module)
            return
        for tensor in (*module.parameters(), *module.buffers()):
            if not isinstance(tensor, DTensor):
                tensor.data = tensor.data.to(self.root_device)

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        while self._undo_checkpointing:
            self._undo_checkpointing.pop()()
        self._left_out.forget()
        self._lacking.clear()

    def leave_group(self) -> None:
        """All ranks. Modules stay sharded for the next stage of the script, and so need the group
        until it ends.
        """
        if self.launcher.calls_in_place and self._replaced:
            # which would keep it, and its groups, when another stage has left them
            atexit.unregister(self.leave_group)
            return
        self.device_mesh = None
        mesh.forget()
        super().leave_group()
