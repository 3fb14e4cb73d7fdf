"""The state of modules and optimizers that are cut into shards: handed over whole, or in shards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from core.strategies import ParallelStrategy
from core_fsdp import forward, wrapping
from core_fsdp import state as states
from core_fsdp.gradients import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim import Optimizer


class ShardedStates(ParallelStrategy):
    """Hands over and restores the state of sharded modules and their optimizers."""

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names: whole on rank 0 and nothing elsewhere, or
        each rank's shards.

        Whole tensors are gathered one at a time, and kept on the CPU.
        """
        self._reshard()
        layout = layout or self.checkpoint_io.layout
        named = super().get_module_state_dict(module)
        converted = states.module_state(
            named, self.session.handle_of(module).module, self._converter(layout)
        )
        return converted if layout == "sharded" or self.is_global_zero else {}

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore a state, whole or in shards of any mesh; each rank copies its own
        part.
        """
        self._reshard()
        if states.has_whole(state):
            state = states.for_module(super().get_module_state_dict(module), state)
        super().load_module_state_dict(module, state, strict=strict)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. State by parameter names: whole on rank 0 and nothing elsewhere, or each
        rank's shards.
        """
        layout = self.checkpoint_io.layout
        converted = states.optimizer_state(
            super().get_optimizer_state_dict(optimizer), self._converter(layout)
        )
        return converted if layout == "sharded" or self.is_global_zero else {}

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore a state, whole or in shards of any mesh; each rank keeps its own
        part.
        """
        names = self.parameter_names(optimizer)
        by_name = dict(zip(names, parameters_of(optimizer), strict=True))
        super().load_optimizer_state_dict(optimizer, states.for_optimizer(state, by_name))

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the optimizer's shards; see `Strategy.parameter_names`."""
        self._reshard()
        return super().parameter_names(optimizer)

    def _converter(self, layout: str) -> Callable[[Any], Any]:
        return (
            states.sharded_leaf
            if layout == "sharded"
            else partial(states.whole_leaf, keep=self.is_global_zero)
        )

    def _reshard(self) -> None:
        for handle in self.session.handles:
            forward.reshard(wrapping.sharded_units(handle.module))
