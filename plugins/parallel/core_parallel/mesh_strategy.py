"""Training on ranks of one stage: set-up of modules, gradients, and steps of optimizers."""

from __future__ import annotations

import random
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from core import ModuleError
from core.checkpoint import collect_random_state, restore_random_state
from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_parallel.communication import averages, overflow
from core_parallel.context.gradient_terms import Terms
from core_parallel.context.sequence import (
    Context,
    check_whole_batches,
    computed_again,
    in_parts,
    newest_turn,
)
from core_parallel.cut_modules import CutModules
from core_parallel.experts import expert_modules, uncompiled
from core_parallel.mesh.placements import cut_axes
from core_parallel.modules import compiled_parts, torch_clipping
from core_parallel.tensor import layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core import GradientClipping
    from core_parallel.context.attention import Attention


class MeshStrategy(CutModules):
    """Training on a mesh without stages, which `MeshParallelStrategy` adds. Calls of the model are
    run on a part of the sequence, along `context`.

    Gradients are averaged over the axes along which ranks have the same parameters.
    """

    _context_options: tuple[Attention, int]
    """How attention sees the whole sequence, and the dimension of tensors that is the sequence."""
    _gradient_terms: Terms | None = None
    _began = 0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._contexts: dict[nn.Module, list[Context]] = {}
        self._undo: list[Callable[[], None]] = []
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
        group = self._sharing
        if group is not None:
            states = [collect_random_state(self.accelerator, self.root_device)]
            dist.broadcast_object_list(states, group=group, group_src=0)
            restore_random_state(states[0], self.accelerator, self.root_device)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Replace the optimizer's parameters by their parts; see
        `FSDPStrategy.setup_optimizer`.
        """
        if not self._is_in_parts:
            return optimizer
        return super().setup_optimizer(optimizer)

    # steps ----------------------------------------------------------------------------------------

    def _refuse_uncuttable(self, module: nn.Module) -> None:
        """Refuse hooks that would see parts, and what needs whole batches where sequences are cut.

        Raises:
            ModuleError: with the name of the parameter or the module.
        """
        self._check_hooks(module)
        if self.sizes.context > 1:
            check_whole_batches(module)

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. The user's method, in which calls of the model see a part of the
        sequence.
        """
        method = super().step_callable(name, module)
        own = self.session.handle_of(module).module
        contexts = self._contexts_of(own, called_in(own))
        if not contexts and own not in self._blocks:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            with layers.explained(), self._followed(own, (args, kwargs)):
                if contexts and name == "forward":
                    return contexts[0](method, args, kwargs)
                self._began = newest_turn(contexts)
                with in_parts(contexts):
                    return method(*args, **kwargs)

        return call

    def _contexts_of(self, own: nn.Module, called: Sequence[nn.Module]) -> list[Context]:
        """All ranks. The calls that see a part of the sequence, of a user's module; none without
        that axis.
        """
        group = self._axis("context")
        if group is None:
            return []
        if own not in self._contexts:
            given = (group, *self._context_options, self._draw_apart)
            joins = "context" not in self._local_loss
            made = [Context(one, own, *given, joins=joins) for one in called]
            by_token = [*self._experts_in(own), *layers.cut_in(own)]
            with suppress(ModuleError):  # there are none
                by_token += [one.module for one in expert_modules.find(own, self._expert_plan)]
            for one in made:
                one.by_token = list(dict.fromkeys(by_token))
            self._contexts[own] = made
        return self._contexts[own]

    def _leave_out_of_graphs(
        self, module: nn.Module, called: Sequence[nn.Module], *, compiles: bool
    ) -> None:
        """Leave exchanges out of what is compiled, of sequences in attention, and of tokens around
        experts.
        """
        if not (compiles or self.session.compiles) or self.sizes.context == self.sizes.expert == 1:
            return
        for one in self._contexts_of(module, called):
            one.attention.leave_out_of_graphs()
        self._undo.append(uncompiled.leave_out(self._experts_in(module)))

    @contextmanager
    def _draw_apart(self) -> Iterator[None]:
        """A context in which each rank of a context group draws its own numbers; what they share
        goes on afterwards.
        """
        # of Python's generator, so that torch's draws in a step are those of one device
        base = random.getrandbits(62)
        before = collect_random_state(self.accelerator, self.root_device)
        try:
            torch.manual_seed(base + self.global_rank // self.sizes.tensor)
            yield
        finally:
            restore_random_state(before, self.accelerator, self.root_device)

    def _terms(self) -> Terms | None:
        """All ranks. The gradients that are added up over a context group; None without one."""
        group = self._axis("context")
        if self._gradient_terms is None and group is not None:
            self._gradient_terms = Terms(group)
        return self._gradient_terms

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
        for axes in (("data", "context"), ("data", "shard", "context")):
            group = self._axis(*axes)
            if group is not None:
                # fully_shard averages over its axis itself
                sums = "shard" in axes
                own = [one for one in parameters if ("shard" in cut_axes(one)) != sums]
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
        stand_in = self._stand_in(optimizer)
        if stand_in is None:
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
        if len(torch_clipping.by_mesh(gradients)) <= 1:
            return None
        return averages.norm_of(gradients, norm_type, None)

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        torch_clipping.leave(self)
        self._stand_ins.clear()
        self._contexts.clear()
        self._gradient_terms = None
        while self._undo:
            self._undo.pop()()


def called_in(user: nn.Module) -> list[nn.Module]:
    """The modules that a step may call with a sequence: the user's own, and those in it."""
    return [
        user,
        *(child for child in user.children() if next(child.parameters(), None) is not None),
    ]
