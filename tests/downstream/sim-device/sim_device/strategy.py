"""One device and several, which neither torch's process groups nor its files know anything of."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from core import Capability
from core.strategies import ParallelStrategy, SingleDeviceStrategy, Strategy, refuse_sparse_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer


class HostState(Strategy):
    """Hands out state on the CPU, for the device's tensors are of a class that no file may name."""

    def get_module_state_dict(self, module: nn.Module, **options: Any) -> dict[str, Any]:
        """All ranks. The module's state, copied."""
        state = super().get_module_state_dict(module, **options)
        state.update({name: _on_host(value) for name, value in state.items()})
        return state

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state, copied."""
        state = super().get_optimizer_state_dict(optimizer)
        moments = {
            name: {key: _on_host(value) for key, value in entry.items()}
            for name, entry in state["state"].items()
        }
        return {**state, "state": moments}


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "cpu") else value


class SimStrategy(HostState, SingleDeviceStrategy):
    """One device."""


class SimParallelStrategy(HostState, ParallelStrategy):
    """One process a device. What ranks exchange goes through the CPU, over gloo."""

    def __init__(self, *, start_method: str = "subprocess", **parts: Any) -> None:
        """Say who makes the processes.

        Args:
            start_method: name of the launcher that does if no cluster has.
            parts: of `core.strategies.ParallelStrategy`.
        """
        super().__init__(**parts)
        self.launcher_name = start_method
        self._syncs = True

    @property
    def capabilities(self) -> Capability:
        """Those of every parallel strategy, and accumulation without communication."""
        return super().capabilities | Capability.NO_SYNC

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Everybody begins with the weights of rank 0."""
        refuse_sparse_layers(self, module)
        module = super().setup_module(module)
        for tensor in chain(module.parameters(), module.buffers()):
            tensor.detach().copy_(self.broadcast(tensor.detach()))
        return module

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, then the mean of the gradients of all modules."""
        super().backward(loss, module, manual=manual, **kwargs)
        if not self._syncs:
            return
        for handle in self.session.handles:
            for parameter in handle.module.parameters():
                if parameter.grad is not None:  # the mean of a mean is the same again
                    parameter.grad.copy_(self.reduce(parameter.grad))

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> Iterator[None]:
        """All ranks. A context in which gradients stay local."""
        before, self._syncs = self._syncs, self._syncs and not enabled
        try:
            yield
        finally:
            self._syncs = before

    def reduce(self, tensor: Tensor, group: Any = None, reduce_op: Any = "mean") -> Tensor:
        """All ranks. Combine on the CPU; the result is where the tensor was."""
        return super().reduce(tensor.cpu(), group, reduce_op).to(tensor.device)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks. Stack on the CPU; the result is where the tensor was, and gradients flow
        back.
        """
        return super().all_gather(tensor.cpu(), group, sync_grads).to(tensor.device)
