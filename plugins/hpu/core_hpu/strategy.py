"""Training on one Gaudi device, and on several with a replica on each.

In lazy mode the device's operations wait in a graph, until `mark_step` has it compiled and
launched: https://docs.habana.ai/en/latest/PyTorch/PyTorch_Gaudi_Theory_of_Operations.html. In eager
mode it does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.strategies import SingleDeviceStrategy, Strategy, refuse_sparse_layers
from core_ddp import DDPStrategy
from core_hpu import vendor
from core_hpu.collectives import HCCLStrategy
from core_hpu.host_state import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor, nn
    from torch.optim import Optimizer

_EVALUATES = frozenset({"validation_step", "test_step", "predict_step"})


class HPUStrategy(Strategy):
    """Launches the graph of lazy mode where a step has its seams. Meant to be mixed in."""

    device_types: tuple[str, ...] = ("hpu",)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. See `Strategy.setup_module`.

        Raises:
            ModuleError: a layer gives sparse gradients, which these devices don't have.
        """
        refuse_sparse_layers(self, module)
        return super().setup_module(module)

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """None: nothing is compared, since these devices have no integers of 64 bits unless they
        are asked for.
        """
        return None

    def mark_step(self) -> None:
        """All ranks. Launch the graph that has been collected so far; in eager mode nothing waits.

        Called after each backward, each optimizer step, and each step of an evaluation. A loop of
        the user's own that does something else on the device calls it where a piece of it ends.
        """
        vendor.load("core").mark_step()

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Compute gradients, and launch; see `Strategy.backward`."""
        super().backward(loss, module, manual=manual, **kwargs)
        self.mark_step()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer, and launch."""
        updated = super().optimizer_step(optimizer, closure)
        self.mark_step()
        return updated

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. A step of an evaluation ends with a launch."""
        step = super().step_callable(name, module)
        if name not in _EVALUATES:
            return step

        def launched(*args: Any, **kwargs: Any) -> Any:
            output = step(*args, **kwargs)
            self.mark_step()
            return output

        return launched


class SingleHPUStrategy(HostState, HPUStrategy, SingleDeviceStrategy):
    """One process, one Gaudi device."""


class HPUParallelStrategy(HostState, HPUStrategy, HCCLStrategy, DDPStrategy):
    """Data parallelism on Gaudi devices: torch's DistributedDataParallel over HCCL, on one node or
    several.

    Its options are those of `core_ddp.DDPStrategy`.
    """

    def ddp_device_ids(self) -> list[int] | None:
        """None: a process has one device, which DDP finds by the module."""
        return None
