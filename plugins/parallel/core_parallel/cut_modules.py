"""Modules of which each rank has parts: layers are cut, experts distributed, tensors sharded."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_fsdp import wrapping
from core_parallel.experts import expert_modules, expert_shards
from core_parallel.mesh_axes import MeshAxes
from core_parallel.modules.followed_calls import FollowedCalls
from core_parallel.stages import first_values
from core_parallel.tensor import checks, layers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.distributed.tensor.parallel import ParallelStyle


class CutModules(MeshAxes):
    """Begins with the same values on all ranks, and cuts modules along `tensor`, `expert` and
    `shard`.
    """

    _tensor_plan: Mapping[str, Any] | None
    _expert_plan: Sequence[str] | Mapping[str, Any] | None
    _local_loss: Collection[str]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._modules_of_experts: list[nn.Module] = []
        self._blocks: dict[nn.Module, tuple[dict[str, nn.Module], Any, FollowedCalls]] = {}

    def _check_hooks(self, module: nn.Module) -> None:
        """Refuse hooks of parameters; where ranks share data alone, those that see a rank's
        gradient once it is there.

        Raises:
            ModuleError: with the parameter's name.
        """
        if self.world_size > 1:
            whole = self.sizes.data == self.world_size and self.sizes.expert == 1
            wrapping.check_hooks(module, *["register_post_accumulate_grad_hook"][: int(whole)])

    def _begin_alike(
        self, module: nn.Module, is_own: Callable[[Tensor], bool] | None = None
    ) -> None:
        """All ranks. Begin with rank 0's values.

        Args:
            module: the user's.
            is_own: whether this rank is to have a tensor that was built on meta, which gets its
                first values then; None leaves all there.
        """
        is_empty = is_own is not None and first_values.is_needed(module, self)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if not tensor.is_meta:
                    tensor.copy_(self.broadcast(tensor.detach()))
        if is_empty and is_own is not None:
            self._lacking += first_values.fill(module, self, is_own)

    def _cut_layers(self, module: nn.Module) -> None:
        if self.sizes.tensor == self.sizes.expert == 1:
            return
        refuse_sparse_layers(self, module)
        refuse_unlike_modules(self, module)
        self.sync_module_states = False  # they begin alike here, before they are cut
        self._replaced.remember(module)
        if not any(isinstance(one, DTensor) for one in module.parameters()):
            self._begin_alike(module)
        found = self._planned_experts(module)
        styles = self._planned(module, found)
        self._distribute(found)
        self._cut_planned(module, styles)

    def _planned(
        self, module: nn.Module, found: Sequence[expert_modules.ExpertModule]
    ) -> dict[str, ParallelStyle]:
        """The styles in which layers of a whole module are cut. Each rank of a tensor group has its
        experts whole.
        """
        size = self.sizes.tensor
        if size == 1:
            return {}
        names = {one.name for one in found}
        keeps_logits = "tensor" in self._local_loss
        joins_first = self.sizes.pipeline > 1
        return layers.plan(
            module,
            self._tensor_plan,
            size,
            names,
            keeps_logits=keeps_logits,
            joins_first=joins_first,
        )

    def _cut_planned(self, module: nn.Module, styles: Mapping[str, ParallelStyle]) -> None:
        """All ranks, with the same values. Cut layers in place; what is computed between them is
        followed in steps.
        """
        if styles:
            layers.cut(module, styles, self._mesh_of("tensor"))
            blocks = checks.blocks_of(module, styles)
            checks.draw_apart(blocks, styles, self._axis("tensor"))
            calls = FollowedCalls(module, compiles=self.session.compiles)
            self._blocks[module] = blocks, styles, calls

    def _followed(self, own: nn.Module, given: Any) -> AbstractContextManager[None]:
        """All ranks. A context of a step in which what cut layers compute is followed."""
        if own not in self._blocks:
            return nullcontext()
        blocks, styles, calls = self._blocks[own]
        if not calls.has(given):
            return nullcontext()
        return checks.followed(own, blocks, styles)

    def _planned_experts(self, module: nn.Module) -> list[expert_modules.ExpertModule]:
        """The experts of a whole module that are to be distributed."""
        own = self._experts_mesh
        if own is None:
            return []
        found = expert_modules.plan(module, self._expert_plan, own)
        expert_shards.check(found, own["expert"].size(), own["expert_shard"].size())
        return found

    def _distribute(self, found: Sequence[expert_modules.ExpertModule]) -> None:
        """All ranks, with the same values. Keep this rank's experts."""
        if self._experts_mesh is not None:
            expert_modules.distribute(found, self._experts_mesh, in_units=self.sizes.shard > 1)
            self._modules_of_experts += [one.module for one in found]

    def _experts_in(self, module: nn.Module) -> list[nn.Module]:
        """The modules in it whose experts are distributed."""
        inside = set(module.modules())
        return [one for one in self._modules_of_experts if one in inside]

    def configure_sharding(self, module: nn.Module) -> None:
        """All ranks. Shard over the axis `shard`, if it has several ranks; experts over ranks with
        the same ones.
        """
        if self.sizes.shard == 1:
            return
        if self._experts_mesh is not None:
            expert_shards.cut(
                self._experts_in(module),
                self._experts_mesh,
                mp_policy=self._policy(),
                offload_policy=self._offload(),
                reshard_after_forward=self.sharding.reshard_after_forward is not False,
            )
        super().configure_sharding(module)

    def _check_sharding(self, module: nn.Module) -> None:
        """Refuse what can't be sharded in units, before a run.

        Raises:
            ModuleError: with the name of the parameter or the module.
        """
        wrapping.check_parameters(module)
        wrapping.choose_modules(
            module, self.configure_fsdp_auto_wrap_policy(module), "auto_wrap_policy"
        )

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        self._modules_of_experts.clear()
        self._blocks.clear()
