"""The state of modules in stages and of their optimizers: whole on rank 0, or in parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from core import ShardedLeaf
from core_fsdp.gradients import parameters_of
from core_parallel.communication import averages
from core_parallel.experts import expert_modules
from core_parallel.mesh import sizes
from core_parallel.mesh.placements import cut_axes
from core_parallel.pipeline import state
from core_parallel.staged_modules import COPIES, StagedModules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core_parallel.pipeline.chain import Chain


class StagedStates(StagedModules):
    """Hands over and restores the state of modules in stages and of their optimizers."""

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names: whole on rank 0 and nothing elsewhere, or
        each rank's part.
        """
        own = self.session.handle_of(module).module
        if (chain := self._chains.get(own)) is None:
            return super().get_module_state_dict(module, layout=layout)
        layout = layout or self.checkpoint_io.layout
        self._reshard()
        named = state.module_state(
            self.session.module_state(module),
            list(own.state_dict(keep_vars=True).values()),
            chain.layout.owners(),
            self._leaf_converter(layout, chain),
        )
        return named if layout == "sharded" or self.is_global_zero else {}

    def load_module_state_dict(
        self, module: nn.Module, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore a state, whole or in parts; each rank copies what it has."""
        own = self.session.handle_of(module).module
        is_parted = any(isinstance(leaf, ShardedLeaf) for leaf in state_dict.values())
        if own in self._chains:
            self._reshard()
            state_dict = state.for_module(self.session.module_state(module), state_dict)
        super().load_module_state_dict(module, state_dict, strict=strict)
        if is_parted and own in self._chains:
            self._copy_to_others([*own.parameters(), *own.buffers()])

    def _copy_to_others(self, tensors: Sequence[Tensor]) -> None:
        """All ranks. Copy what one rank has read to those that have the same part."""
        for axes in COPIES:
            cut = {"shard", "tensor"}.difference(axes)
            if (group := self._axis(*axes)) is not None:
                averages.copy_from_first([one for one in tensors if cut_axes(one) == cut], group)
        if self._experts_mesh is not None:
            expert_modules.copy_to_others(tensors, self._experts_mesh)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. State by parameter names: whole on rank 0 and nothing elsewhere, or each
        rank's part.
        """
        if not self._chains:
            return super().get_optimizer_state_dict(optimizer)
        layout = self.checkpoint_io.layout
        self._reshard()
        chain = next(iter(self._chains.values()))
        owners = self._owners()
        of_names = {
            name: owners.get(id(parameter))
            for name, parameter in self._named_parameters(optimizer).items()
        }
        named = state.optimizer_state(
            self.session.optimizer_state(optimizer),
            of_names,
            chain.line,
            self._leaf_converter(layout, chain),
        )
        return named if layout == "sharded" or self.is_global_zero else {}

    def load_optimizer_state_dict(
        self, optimizer: Optimizer, state_dict: Mapping[str, Any]
    ) -> None:
        """All ranks. Restore a state, whole or in parts; each rank keeps what belongs to its
        parameters.
        """
        if self._chains:
            state_dict = state.for_optimizer(state_dict, self._named_parameters(optimizer))
        super().load_optimizer_state_dict(optimizer, state_dict)

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. The places for an optimizer's tensors while a checkpoint is read; none for
        another stage's.
        """
        targets = super().optimizer_targets(optimizer, described)
        if targets is None or not self._chains:
            return targets
        return state.optimizer_targets(targets, self._named_parameters(optimizer))

    def _leaf_converter(self, layout: str, chain: Chain) -> Callable[[Any, int | None], Any]:
        assert self.device_mesh is not None, "setup_environment has laid it out"
        place = dict(zip(sizes.AXES, self.device_mesh.get_coordinate() or (), strict=True))
        position = place.pop("pipeline")
        if layout == "sharded":
            return partial(
                state.parted_leaf,
                position=position,
                coordinates=place,
                of_experts=expert_modules.coordinates(self._experts_mesh),
            )
        return partial(state.whole_leaf, line=chain.line, takes_part=not any(place.values()))

    def _owners(self) -> dict[int, int]:
        return {
            key: owner
            for chain in self._chains.values()
            for key, owner in chain.layout.owners().items()
        }

    def _named_parameters(self, optimizer: Optimizer) -> dict[str, Tensor]:
        names = self.parameter_names(optimizer)
        return dict(zip(names, parameters_of(optimizer), strict=True))
