"""State on the CPU, from which it is written, and which every other strategy can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from core import Capability
from core.strategies import Strategy

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class HostState(Strategy):
    """Hands out state on the CPU. Meant to be mixed in."""

    @property
    def capabilities(self) -> Capability:
        """Without replicated parameters: ranks tell those by their memory, and a copy on the CPU
        has another one.
        """
        return super().capabilities & ~Capability.REPLICATED_PARAMETERS

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. The module's state, copied."""
        state = super().get_module_state_dict(module, layout=layout)
        # In place: the dict carries the versions of torch's modules.
        state.update({name: _on_host(value) for name, value in state.items()})
        return state

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state by parameter names, copied."""
        state = super().get_optimizer_state_dict(optimizer)
        entries = {
            name: {key: _on_host(value) for key, value in one.items()}
            for name, one in state["state"].items()
        }
        return {**state, "state": entries}


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
