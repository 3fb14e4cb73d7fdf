"""Layers cut over the devices of one axis, data over those of the other.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import torch.distributed as dist

from core import ConfigurationError
from core.checkpoint import collect_random_state, restore_random_state
from core_fsdp import freezing, gradients, mesh, wrapping
from core_fsdp.same_batches import SameBatches
from core_fsdp.strategy import FSDPStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.hooks import RemovableHandle

Size = int | Literal["auto"]


class ModelParallelStrategy(FSDPStrategy):
    """Tensor parallelism by the user's plan, combined with sharded data parallelism.

    The user's `configure_model` cuts layers with torch's styles, over the axis `"tensor_parallel"`
    of `device_mesh`:

        def configure_model(self):
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(self.block, self.device_mesh["tensor_parallel"], plan)

    A plain module has no such method: there `parallelize_fn` does it, which Fabric takes as well.

    What it leaves as it is, is computed alike on all ranks of a tensor group: they get the same
    batches, and draw the same random numbers. Over the axis `"data_parallel"` everything is sharded
    as under `fsdp`, with the same options, if that axis has more than one rank.
    """

    data_axes = ("data_parallel", "tensor_parallel")

    def __init__(
        self,
        *given: Any,
        parallelize_fn: Callable[[nn.Module, DeviceMesh], nn.Module | None] | None = None,
        data_parallel_size: Size = "auto",
        tensor_parallel_size: Size = "auto",
        **options: Any,
    ) -> None:
        """Set how layers are cut, the sizes of the two axes, and options of `FSDPStrategy`.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            parallelize_fn: cuts the layers of a module that is set up, in place, given the module
                and `device_mesh`, on all ranks; for modules without `configure_model`. The data
                axis is left to the strategy, unless it calls `fully_shard` itself. None cuts
                nothing.
            data_parallel_size: into how many shares the data is split. `"auto"` is what the other
                one leaves over, or the number of nodes.
            tensor_parallel_size: over how many devices a layer is cut. `"auto"` is what the other
                one leaves over, or all devices of a node, which are connected best.
            options: of `FSDPStrategy`, whose `auto_wrap_policy` is None here unless you pass one;
                its hybrid and unsharded strategies need a third axis, and are refused.

        Raises:
            ConfigurationError: an unknown option, or a size that isn't one.
        """
        super().__init__(*given, **{"auto_wrap_policy": None, **options})
        if self.sharding.replicates or self._mesh_option is not None:
            raise ConfigurationError(
                f"{type(self).__name__} lays out its own mesh of data_parallel and "
                "tensor_parallel, and takes neither device_mesh nor replicas: use "
                "sharding_strategy='FULL_SHARD' or 'SHARD_GRAD_OP'."
            )
        self._hooks: list[RemovableHandle] = []
        self._same_batches = SameBatches()
        self._frozen: list[RemovableHandle] = []
        self._parallelize = parallelize_fn
        self._cut_before: WeakSet[nn.Module] = WeakSet()
        self._data_size = _parse("data_parallel_size", data_parallel_size)
        self._tensor_size = _parse("tensor_parallel_size", tensor_parallel_size)

    def mesh_shape(self) -> tuple[int, ...]:
        """Sizes of the axes `data_parallel` and `tensor_parallel`.

        Raises:
            ConfigurationError: they don't make up the number of processes.
        """
        data = self._data_size
        tensor = self._tensor_size
        world_size = self.world_size
        if data is None:
            data = self.num_nodes if tensor is None else max(1, world_size // tensor)
        if tensor is None:
            tensor = max(1, world_size // data)
        if data * tensor != world_size:
            given = [size or "auto" for size in (self._data_size, self._tensor_size)]
            raise ConfigurationError(
                f"data_parallel_size={given[0]!r} and tensor_parallel_size={given[1]!r} make "
                f"{data} x {tensor} = {data * tensor} processes, and there are {world_size} "
                f"({self.num_processes_per_node} on each of {self.num_nodes} nodes). "
                "Choose sizes whose product is that number."
            )
        return data, tensor

    def setup_environment(self) -> None:
        """All ranks. Join the group and lay out the mesh; what is frozen stays so when it is
        cut.
        """
        super().setup_environment()
        if not self._frozen:
            self._frozen += freezing.keep_frozen(self._tensor_axis)

    def teardown(self) -> None:
        """All ranks; idempotent. Tear down as under `fsdp`; layers that are cut later are none of
        this strategy's.
        """
        while self._frozen:
            self._frozen.pop().remove()
        super().teardown()

    def configure_device_mesh(self) -> DeviceMesh:
        """All ranks. Two axes; ranks of one tensor group follow each other, and so are on one
        node.
        """
        return mesh.lay_out(self.root_device.type, self.mesh_shape(), self.data_axes)

    @property
    def sharding_mesh(self) -> DeviceMesh:
        """The axis over which the data is split."""
        assert self.device_mesh is not None, "setup_environment has laid it out"
        return self.device_mesh["data_parallel"]

    @property
    def _tensor_axis(self) -> DeviceMesh:
        assert self.device_mesh is not None, "setup_environment has laid it out"
        return self.device_mesh["tensor_parallel"]

    @property
    def data_parallel_size(self) -> int:
        """Number of tensor groups: each gets one share of the data."""
        return self.mesh_shape()[0]

    @property
    def data_parallel_rank(self) -> int:
        """The number of this rank's tensor group."""
        return self.global_rank // self.mesh_shape()[1]

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. As under `fsdp`, of tensors among the ranks with the same place in their
        tensor groups.
        """
        return () if tensor is None else self.global_rank % self.mesh_shape()[1]

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Set up as under `fsdp`; from here on the ranks of a tensor group draw the same
        random numbers.
        """
        if self.mesh_shape()[1] > 1:
            self._share_random_state()
        # a later stage sets it up again
        if self._parallelize is not None and module not in self._cut_before:
            self._cut(module, self._parallelize)
            self._cut_before.add(module)
        super().setup_module(module)
        if self.data_parallel_size == 1:  # else sharding adds them up
            self._hooks += gradients.add_up_sums(self.model)
        return self.model

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. As under `fsdp`; ranks of a tensor group compare the first and
        every 100th batch.
        """
        group = self._tensor_axis.get_group() if self.mesh_shape()[1] > 1 else None
        return self._same_batches.around(
            name, super().step_callable(name, module), group, self.root_device
        )

    def _cut(
        self, module: nn.Module, parallelize: Callable[[nn.Module, DeviceMesh], nn.Module | None]
    ) -> None:
        assert self.device_mesh is not None, "setup_environment has laid it out"
        wrapping.check_hooks(module)
        self._replaced.remember(module)
        cut = parallelize(module, self.device_mesh)
        if cut is not None and cut is not module:
            raise ConfigurationError(
                f"parallelize_fn returned a new {type(cut).__name__}; expected the module that it "
                "was given, cut in place, as torch's parallelize_module does it."
            )

    def release(self) -> None:
        """All ranks; idempotent. Release as under `fsdp`; parameters lose their hooks."""
        while self._hooks:
            self._hooks.pop().remove()
        super().release()

    def _share_random_state(self) -> None:
        """All ranks. Share a random state in each tensor group: other dropout masks would let its
        ranks drift apart.
        """
        group = self._tensor_axis.get_group()
        states = [collect_random_state(self.accelerator, self.root_device)]
        dist.broadcast_object_list(states, src=dist.get_global_rank(group, 0), group=group)
        restore_random_state(states[0], self.accelerator, self.root_device)

    def configure_sharding(self, module: nn.Module) -> None:
        """All ranks. Shard over the data axis, if it has more than one rank."""
        if self.data_parallel_size > 1:
            super().configure_sharding(module)


def _parse(name: str, size: Any) -> int | None:
    """A size, or None if it is to be derived."""
    if size == "auto":
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(f"{name}={size!r}: expected a positive number, or 'auto'.")
    return size
