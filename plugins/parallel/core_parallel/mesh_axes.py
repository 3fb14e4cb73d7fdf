"""The mesh of all processes: its axes, their sizes, and the groups of ranks along them."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING

from core import Capability
from core_fsdp import FSDPStrategy
from core_parallel.mesh import device_mesh, sizes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from core import Precision

_log = logging.getLogger(__name__)


class MeshAxes(FSDPStrategy):
    """One mesh of all processes with named axes.

    Where tensors lie in parts, they are DTensors, and all is done as under `fsdp`; else as by any
    strategy that keeps them whole.
    """

    _given: Mapping[str, int | None]
    """The size of each axis, and of `expert`, as the user gave it; None is derived."""
    _mesh: device_mesh.Mesh | None = None

    # composition ----------------------------------------------------------------------------------

    @property
    def sizes(self) -> sizes.Sizes:
        """Sizes of the axes.

        Raises:
            ConfigurationError: they don't multiply to the number of processes.
        """
        return sizes.derive(self._given, self.world_size)

    def mesh_shape(self) -> tuple[int, ...]:
        """Sizes of the axes of `device_mesh`: pipeline, data, shard, context, tensor."""
        return self.sizes.shape

    @property
    def _is_in_parts(self) -> bool:
        """True if a parameter may be a DTensor."""
        return any(self._given[name] != 1 for name in ("shard", "tensor", "expert"))

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, accumulation without communication, and
        state in parts.
        """
        own = super(FSDPStrategy, self).capabilities
        own |= Capability.NO_SYNC | Capability.SHARDED_STATE
        # gathered parameters may be kept for training; and tokens travel in evaluation too, where
        # no rank may end before the others
        if self._given["shard"] != 1 or self._given["expert"] != 1:
            own &= ~Capability.INFERENCE_MODE
        if not self._given["pipeline"] == self._given["expert"] == 1:
            own |= Capability.OWNS_GRADIENTS
        return own

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. Those at the same place along the axes over which no data is split, and with
        the same parts.
        """
        if tensor is None:
            return ()
        one = self.sizes
        share = one.context * one.tensor
        stage = self.global_rank // (share * one.data * one.shard)
        return stage, self.global_rank % share

    def configure_precision(self, name: str) -> Precision | None:
        """The precision of `FSDPStrategy` where parameters are sharded, else every strategy's."""
        if self._given["shard"] == 1:
            return None
        return super().configure_precision(name)

    @property
    def takes_policies(self) -> bool:  # type: ignore[override]  # it depends on the sizes
        """True if layers are called as a whole, with weights of their own, which may be gathered
        for it.
        """
        return all(self._given[name] == 1 for name in ("pipeline", "context", "tensor", "expert"))

    def check(self) -> None:
        """Refuse sizes that don't multiply to the number of processes, and what isn't there yet.

        Raises:
            ConfigurationError: with what fits.
        """
        if self._is_in_parts:
            super().check()
        else:
            super(FSDPStrategy, self).check()
        _ = self.sizes

    # environment ----------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """All ranks. Join the group and lay out the mesh."""
        super(FSDPStrategy, self).setup_environment()
        if self.device_mesh is None and self.world_size > 1:
            self.device_mesh = self.configure_device_mesh()

    def configure_device_mesh(self) -> DeviceMesh:
        """All ranks. The mesh: ranks of a tensor group follow each other, those of a pipeline lie
        farthest apart.
        """
        self._mesh = device_mesh.lay_out(self.root_device.type, self.sizes)
        if self.num_processes_per_node % self.sizes.tensor and self.is_global_zero:
            _log.warning(
                "tensor=%d crosses nodes of %d processes: every layer waits for the network "
                "between them.",
                self.sizes.tensor,
                self.num_processes_per_node,
            )
        return self._mesh.axes

    @property
    def sharding_mesh(self) -> DeviceMesh:
        """The axis over which parameters are sharded."""
        return self._mesh_of("shard")

    @property
    def data_parallel_size(self) -> int:
        """Number of shares of the data: data * shard. Ranks of one pipeline, context or tensor
        group have the same.
        """
        return self.sizes.data * self.sizes.shard

    @property
    def data_parallel_rank(self) -> int:
        """Number of this rank's share."""
        one = self.sizes
        return self.global_rank // (one.context * one.tensor) % (one.data * one.shard)

    def _axis(self, *names: str) -> ProcessGroup | None:
        """All ranks. The group of this rank along some axes; None if it is alone there."""
        return None if self._mesh is None else self._mesh.group(*names)

    def _mesh_of(self, axis: str) -> DeviceMesh:
        assert self.device_mesh is not None, "setup_environment has laid it out"
        return self.device_mesh[axis]

    @property
    def _sharing(self) -> ProcessGroup | None:
        """The group of the ranks that have the same data as this one."""
        return self._axis("pipeline", "context", "tensor")

    @property
    def _experts_mesh(self) -> DeviceMesh | None:
        return None if self._mesh is None else self._mesh.experts

    def leave_group(self) -> None:
        """All ranks; idempotent. Leave the group, and forget its mesh; tensors in parts need it to
        the end.
        """
        if self._is_in_parts and self.launcher.calls_in_place and self._replaced:
            # which would keep it, and its groups, when another stage has left them
            atexit.unregister(self.leave_group)
            return
        self.device_mesh = self._mesh = None
        device_mesh.forget()
        super(FSDPStrategy, self).leave_group()
