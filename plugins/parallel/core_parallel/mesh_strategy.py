"""Training on ranks of one stage: set-up of modules, gradients, and steps of optimizers."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core.checkpoint import collect_random_state, restore_random_state
from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_parallel.communication import averages, overflow
from core_parallel.context.sequence import computed_again
from core_parallel.cut_sequences import CutSequences, called_in
from core_parallel.experts import expert_modules
from core_parallel.mesh.placements import cut_axes
from core_parallel.modules import compiled_parts, torch_clipping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import GradientClipping


class MeshStrategy(CutSequences):
    """Training on a mesh without stages, which `MeshParallelStrategy` adds.

    Gradients are averaged over the axes along which ranks have the same parameters.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._local: list[nn.Module] = []
        self._stand_ins: dict[Optimizer, Optimizer] = {}

    # module ---------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Begin with rank 0's weights, and cut what is to lie in parts.

        Raises:
            ModuleError: the module can't be cut, or ranks have built different ones.
        """
        self._refuse_uncuttable(module)
        torch_clipping.follow(self)
        compiler = self.session.compiler
        if self.sizes.context > 1:
            # of what is called in parts, and not of the step around it
            self.session.compiler = None
        self._share_random_state()
        self._set_up_whole(module)
        self._leave_out_of_graphs(module, called_in(module), compiles=compiler is not None)
        if self.sizes.context > 1 and compiler is not None:
            self._undo.append(compiled_parts.compile_parts(called_in(module), compiler))
        return self.model

    def _set_up_whole(self, module: nn.Module) -> None:
        if self._is_in_parts:
            self._cut_layers(module)
            super().setup_module(module)
            return
        refuse_unlike_modules(self, module)
        refuse_sparse_layers(self, module)
        if self.world_size > 1:  # before values are converted, as on one device
            self._begin_alike(module, lambda tensor: True)
        self.model = self.precision_plugin.convert_module(module)
        self.module_to_device(module)

    def _share_random_state(self) -> None:
        """All ranks. Share a random state among the ranks that have the same data, which run the
        user's step alike.
        """
        if (group := self._sharing) is not None:
            states = [collect_random_state(self.accelerator, self.root_device)]
            dist.broadcast_object_list(states, group=group, group_src=0)
            restore_random_state(states[0], self.accelerator, self.root_device)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Replace the optimizer's parameters by their parts; see
        `FSDPStrategy.setup_optimizer`.
        """
        return super().setup_optimizer(optimizer) if self._is_in_parts else optimizer

    # gradients ------------------------------------------------------------------------------------

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Backward, then the average over the axes along which ranks have the same
        parameters.
        """
        every = [handle.module for handle in self.session.handles]
        terms = self._terms()
        with (
            computed_again(
                [one for contexts in self._contexts.values() for one in contexts], self._began
            ),
            nullcontext() if terms is None else terms.of(loss, every),
        ):
            super().backward(loss, module, manual=manual, **kwargs)
        modules = [one for one in every if one not in self._local]
        parameters: list[Tensor] = [one for each in modules for one in each.parameters()]
        averages.add_up_terms(parameters)
        if self._experts_mesh is not None:
            parameters = expert_modules.average(parameters, self._experts_mesh)
        sharded = [one for one in parameters if "shard" in cut_axes(one)]
        known = set(map(id, sharded))
        others = [one for one in parameters if id(one) not in known]
        # fully_shard averages over its axis itself.
        for own, axes in ((sharded, ("data", "context")), (others, ("data", "shard", "context"))):
            if (group := self._axis(*axes)) is not None:
                averages.average(own, group)
        if terms is not None:
            terms.end(modules)

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> Iterator[None]:
        """All ranks. A context in which gradients aren't averaged over data; those of stages and
        layers still flow.
        """
        if not enabled:
            yield
            return
        own = self.session.handle_of(module).module
        self._local.append(own)
        try:
            with super().no_backward_sync(own, self._accumulates_whole(own)):
                yield
        finally:
            self._local.remove(own)

    def _accumulates_whole(self, module: nn.Module) -> bool:
        """True if gradients of what is in shards may stay whole until a window ends."""
        return True

    # steps of optimizers --------------------------------------------------------------------------

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer, unless gradients of any rank overflowed."""
        if (stand_in := self._stand_in(optimizer)) is None:
            return super().optimizer_step(optimizer, closure)
        if self.precision_plugin.optimizer_step(stand_in):
            optimizer.step()
            return 1
        return 0

    def _stand_in(self, optimizer: Optimizer) -> Optimizer | None:
        """All ranks. The optimizer that is asked for overflows in place of one without gradients;
        None if that is asked itself.
        """
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is None or self.world_size == 1:
            return None
        overflow.agree(scaler)
        if overflow.has_gradients(optimizer):
            return None
        if optimizer not in self._stand_ins:
            self._stand_ins[optimizer] = overflow.stand_in(self.root_device)
        return self._stand_ins[optimizer]

    def _unscale(self, optimizer: Optimizer) -> None:
        """All ranks. Bring gradients back to their true size."""
        self.precision_plugin.unscale_gradients(self._stand_in(optimizer) or optimizer)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip over all axes; see `Strategy.clip_gradients`."""
        self._unscale(optimizer)
        return super().clip_gradients(module, optimizer, clipping)

    def norm_of(self, gradients: Sequence[Tensor], norm_type: float) -> Tensor | None:
        """All ranks. The norm of gradients that torch's `clip_grad_norm_` is given; None if torch
        can take it.
        """
        has_meshes = len(torch_clipping.by_mesh(gradients)) > 1
        return averages.norm_of(gradients, norm_type, None) if has_meshes else None

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        torch_clipping.leave(self)
        self._stand_ins.clear()
