"""One mesh of all processes with named axes, and what ranks do that have the same stage."""

from __future__ import annotations

import atexit
import logging
import random
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from core import Capability, ConfigurationError, ModuleError
from core.checkpoint import collect_random_state, restore_random_state
from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_fsdp import FSDPStrategy, wrapping
from core_parallel.communication import averages, overflow
from core_parallel.context.attention import Attention
from core_parallel.context.gradient_terms import Terms
from core_parallel.context.sequence import (
    Context,
    check_whole_batches,
    computed_again,
    in_parts,
    newest_turn,
)
from core_parallel.context.uncompiled_attention import Apart
from core_parallel.experts import expert_modules, expert_shards, uncompiled
from core_parallel.mesh import device_mesh, sizes
from core_parallel.mesh.placements import cut_axes
from core_parallel.microbatches import batches
from core_parallel.modules import compiled_parts, torch_clipping
from core_parallel.modules.check_keys import CheckKeys, is_without_values
from core_parallel.stages import first_values
from core_parallel.tensor import checks, layers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.optim import Optimizer

    from core import GradientClipping, Precision

_log = logging.getLogger(__name__)
_OF_SHARDS = (
    "cpu_offload",
    "mixed_precision",
    "auto_wrap_policy",
    "activation_checkpointing",
    "activation_checkpointing_policy",
    "sharding_strategy",
    "forward_prefetch",
)
_OF_UNITS = (
    "cpu_offload",
    "auto_wrap_policy",
    "activation_checkpointing",
    "activation_checkpointing_policy",
    "forward_prefetch",
)


class MeshStrategy(FSDPStrategy):
    """The mesh and its axes, without stages and without arguments: `MeshParallelStrategy` adds
    both.

    Where tensors lie in parts, they are DTensors, and all is done as under `fsdp`; else as by any
    strategy that keeps them whole. Gradients are then averaged over the axes along which ranks have
    the same parameters.
    """

    def _lay_axes(
        self,
        axes: Mapping[str, sizes.Size],
        *,
        tensor_plan: Mapping[str, Any] | None,
        expert_plan: Sequence[str] | Mapping[str, Any] | None,
        context_attention: Attention,
        context_dim: int,
        context_loss: str,
        tensor_loss: str,
        options: Mapping[str, Any],
    ) -> None:
        """End of construction: take what `MeshParallelStrategy` was given for the axes, beside
        options of shards.

        Raises:
            ConfigurationError: a value that isn't one, or an option that doesn't go with the axes.
        """
        self._given = {name: sizes.parse(name, size) for name, size in axes.items()}
        self._mesh: device_mesh.Mesh | None = None
        self._tensor_plan, self._expert_plan = tensor_plan, expert_plan
        if context_attention not in ("ulysses", "gather"):
            raise ConfigurationError(
                f"context_attention={context_attention!r}: expected 'ulysses' or 'gather'."
            )
        for name, word in {"context_loss": context_loss, "tensor_loss": tensor_loss}.items():
            if word not in ("whole", "local"):
                raise ConfigurationError(f"{name}={word!r}: expected 'whole' or 'local'.")
        self._keeps_logits = tensor_loss == "local"
        self._context_options, self._joins = (
            (context_attention, context_dim),
            context_loss == "whole",
        )
        self._contexts: dict[nn.Module, list[Context]] = {}
        self._gradient_terms: Terms | None = None
        self._began = 0
        self._local: list[nn.Module] = []
        self._modules_of_experts: list[nn.Module] = []
        self._undo: list[Callable[[], None]] = []
        self._stand_ins: dict[Optimizer, Optimizer] = {}
        self._blocks: dict[nn.Module, tuple[dict[str, nn.Module], Any, CheckKeys]] = {}
        self._unlike: set[nn.Module] = set()
        self._refuse_beside(options)

    def _refuse_beside(self, options: Mapping[str, Any]) -> None:
        owner = type(self).__name__
        if self.sharding.replicates or self._mesh_option is not None:
            raise ConfigurationError(
                f"{owner} lays out its own mesh of data, shard and further axes, and takes neither "
                "device_mesh nor replicas: use sharding_strategy='FULL_SHARD' or 'SHARD_GRAD_OP'."
            )
        if self._keeps_logits and self._given["pipeline"] != 1:
            raise ConfigurationError(
                f"{owner}(tensor_loss='local') isn't there yet with a pipeline, whose ranks share "
                "what the model returns. Leave it out."
            )
        if self._keeps_logits and self._given["context"] != 1 and self._joins:
            raise ConfigurationError(
                f"{owner}(tensor_loss='local') leaves logits in parts, and context_loss='whole' "
                "joins them. Give context_loss='local' too."
            )
        asked = {name for name, value in options.items() if value not in (None, False, "units")}
        unused = [name for name in _OF_SHARDS if name in asked]
        if "activation_checkpointing" in asked and (
            self._given["shard"] == 1 or self._given["pipeline"] != 1
        ):
            raise ConfigurationError(
                f"{owner}(activation_checkpointing=...) is about units of shards alone. Give "
                "activation_checkpointing='units' to Trainer or Fabric, which goes with all axes."
            )
        if unused and self._given["shard"] == 1:
            raise ConfigurationError(
                f"{owner}({unused[0]}=...) is about parameters in shards, and shard=1 has none. "
                "Leave it out, or say over how many ranks they are sharded, as in shard=2."
            )
        if self._given["pipeline"] != 1 and (
            unused := [name for name in _OF_UNITS if name in asked]
        ):
            raise ConfigurationError(
                f"{owner}({unused[0]}=...) isn't there yet with a pipeline, whose units are its "
                "parts. Leave it out."
            )

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
        own = super().capabilities
        if self._given["shard"] == 1:
            own = (
                super(FSDPStrategy, self).capabilities
                | Capability.NO_SYNC
                | Capability.SHARDED_STATE
            )
        # tokens travel in evaluation too, where no rank may end before the others
        if self._given["expert"] != 1:
            own &= ~Capability.INFERENCE_MODE
        has_all = self._given["pipeline"] == self._given["expert"] == 1
        return own if has_all else own | Capability.OWNS_GRADIENTS

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. Those at the same place along the axes over which no data is split, and with
        the same parts.
        """
        one, share = self.sizes, self.sizes.context * self.sizes.tensor
        stage = self.global_rank // (share * one.data * one.shard)
        return () if tensor is None else (stage, self.global_rank % share)

    def configure_precision(self, name: str) -> Precision | None:
        """The precision of `FSDPStrategy` where parameters are sharded, else every strategy's."""
        return super().configure_precision(name) if self._given["shard"] != 1 else None

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
        owner: Any = super() if self._is_in_parts else super(FSDPStrategy, self)
        owner.check()
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

    @property
    def _sharing(self) -> ProcessGroup | None:
        """The group of the ranks that have the same data as this one."""
        return self._axis("pipeline", "context", "tensor")

    # module ---------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Begin with rank 0's weights, and cut what is to lie in parts.

        Raises:
            ModuleError: the module can't be cut, or ranks have built different ones.
        """
        self._check_hooks(module)
        torch_clipping.follow(self)
        compiler = self.session.compiler
        if self.sizes.context > 1:
            check_whole_batches(module)
            # of what is called in parts, and not of the step around it
            self.session.compiler = None
        self._share_random_state()
        self._set_up_whole(module)
        self._leave_out_of_graphs(module, _called(module), compiles=compiler is not None)
        if self.sizes.context > 1 and compiler is not None:
            self._undo.append(compiled_parts.compile_parts(_called(module), compiler))
        return self.model

    def _check_hooks(self, module: nn.Module) -> None:
        """Refuse hooks of parameters; where ranks share data alone, those that see a rank's
        gradient once it is there.

        Raises:
            ModuleError: with the parameter's name.
        """
        if self.world_size > 1:
            whole = self.sizes.data == self.world_size and self.sizes.expert == 1
            wrapping.check_hooks(module, *["register_post_accumulate_grad_hook"][: int(whole)])

    def _set_up_whole(self, module: nn.Module) -> nn.Module:
        if self._is_in_parts:
            self._cut_layers(module)
            return super().setup_module(module)
        refuse_unlike_modules(self, module)
        refuse_sparse_layers(self, module)
        if self.world_size > 1:  # before values are converted, as on one device
            self._begin_alike(module, lambda tensor: True)
        self.model = self.precision_plugin.convert_module(module)
        self.module_to_device(module)
        return self.model

    def _leave_out_of_graphs(
        self, module: nn.Module, called: Sequence[nn.Module], *, compiles: bool
    ) -> None:
        """Leave exchanges out of what is compiled, of sequences in attention, and of tokens around
        experts.
        """
        if not (compiles or self.session.compiles) or self.sizes.context == self.sizes.expert == 1:
            return
        for one in self._contexts_of(module, called):
            one.apart = Apart()
        self._undo.append(uncompiled.leave_out(self._experts_in(module)))

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

    def _cut_planned(self, module: nn.Module, styles: Mapping[str, ParallelStyle]) -> None:
        """All ranks, with the same values. Cut layers in place; what is computed between them is
        followed in steps.
        """
        if styles:
            layers.cut(module, styles, self._mesh_of("tensor"))
            blocks = checks.blocks_of(module, styles)
            checks.draw_apart(blocks, styles, self._axis("tensor"))
            self._blocks[module] = blocks, styles, CheckKeys(module, *self._deciding())

    def _followed(self, own: nn.Module, given: Any) -> AbstractContextManager[None]:
        """All ranks. A context of a step in which what cut layers compute is followed, if
        `CheckKeys` says so.
        """
        if own not in self._blocks:
            return nullcontext()
        blocks, styles, keys = self._blocks[own]
        if not keys.is_due(batches.shapes_of(given), given=given):
            return nullcontext()
        if torch.is_grad_enabled() and not is_without_values(own):
            self._unlike.add(own)
        return checks.followed(own, blocks, styles)

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
        return layers.plan(module, self._tensor_plan, size, names, keeps_logits=self._keeps_logits)

    def _planned_experts(self, module: nn.Module) -> list[expert_modules.ExpertModule]:
        """The experts of a whole module that are to be distributed."""
        if (own := self._experts_mesh) is None:
            return []
        found = expert_modules.plan(module, self._expert_plan, own)
        expert_shards.check(found, own["expert"].size(), own["expert_shard"].size())
        return found

    @property
    def _experts_mesh(self) -> DeviceMesh | None:
        return None if self._mesh is None else self._mesh.experts

    def _distribute(self, found: Sequence[expert_modules.ExpertModule]) -> None:
        """All ranks, with the same values. Keep this rank's experts."""
        if (own := self._experts_mesh) is not None:
            expert_modules.distribute(found, own, in_units=self.sizes.shard > 1)
            self._modules_of_experts += [one.module for one in found]

    def _experts_in(self, module: nn.Module) -> list[nn.Module]:
        """The modules in it whose experts are distributed."""
        inside = set(module.modules())
        return [one for one in self._modules_of_experts if one in inside]

    def _mesh_of(self, axis: str) -> DeviceMesh:
        assert self.device_mesh is not None, "setup_environment has laid it out"
        return self.device_mesh[axis]

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

    def _share_random_state(self) -> None:
        """All ranks. Share a random state among the ranks that have the same data, which run the
        user's step alike.
        """
        if (group := self._sharing) is not None:
            states = [collect_random_state(self.accelerator, self.root_device)]
            dist.broadcast_object_list(states, group=group, group_src=0)
            restore_random_state(states[0], self.accelerator, self.root_device)

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

    def _gathering(self, module: nn.Module, layout: Any) -> dict[str, Any]:
        """The fields of `PlacedModel` about shards."""
        if self.sizes.shard == 1:
            return {}
        policy, units = self._policy(), []
        if layout is None:  # else parts are gathered once a step
            wrapping.check_parameters(module)
            chosen = wrapping.choose_modules(
                module, self.configure_fsdp_auto_wrap_policy(module), "auto_wrap_policy"
            )
            units = (
                wrapping.units_of(module, chosen)
                if self.sharding.reshard_after_forward is not False
                else []
            )
        return {"units": units, "gathers_as": policy.param_dtype, "reduces_as": policy.reduce_dtype}

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Replace the optimizer's parameters by their parts; see
        `FSDPStrategy.setup_optimizer`.
        """
        return super().setup_optimizer(optimizer) if self._is_in_parts else optimizer

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. The user's method, in which calls of the model see a part of the
        sequence.
        """
        method = super().step_callable(name, module)
        own = self.session.handle_of(module).module
        contexts = self._contexts_of(own, _called(own))
        if not contexts and own not in self._blocks:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._followed(own, (args, kwargs)):
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
        if (group := self._axis("context")) is None:
            return []
        if own not in self._contexts:
            given = (group, *self._context_options, self._draw_apart, self._deciding())
            made = [Context(one, own, *given, joins=self._joins) for one in called]
            by_token = [*self._experts_in(own), *layers.cut_in(own)]
            with suppress(ModuleError):  # there are none
                by_token += [one.module for one in expert_modules.find(own, self._expert_plan)]
            for one in made:
                one.by_token = list(dict.fromkeys(by_token))
            self._contexts[own] = made
        return self._contexts[own]

    def _deciding(self) -> tuple[ProcessGroup | None, torch.device]:
        """All ranks. The group of the ranks that communicate in a call of the model, and its
        device.
        """
        data = ("data",) if self.sizes.expert > 1 else ()
        return self._axis("pipeline", "shard", "context", "tensor", *data), self.root_device

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
        for each in modules:
            if each in self._unlike:
                self._unlike.discard(each)
                checks.refuse_unlike_gradients(each, self._axis("tensor"))
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

    def _terms(self) -> Terms | None:
        """All ranks. The gradients that are added up over a context group; None without one."""
        if self._gradient_terms is None and (group := self._axis("context")) is not None:
            self._gradient_terms = Terms(group)
        return self._gradient_terms

    @contextmanager
    def _without_average(self, module: nn.Module) -> Iterator[None]:
        self._local.append(module)
        try:
            with super().no_backward_sync(module, self._accumulates_whole(module)):
                yield
        finally:
            self._local.remove(module)

    def _accumulates_whole(self, module: nn.Module) -> bool:
        """True if gradients of what is in shards may stay whole until a window ends."""
        return True

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients aren't averaged over data; those of stages and
        layers still flow.
        """
        return (
            self._without_average(self.session.handle_of(module).module)
            if enabled
            else nullcontext()
        )

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer, unless gradients of any rank overflowed."""
        if self._asks_for_overflows() and not overflow.has_gradients(optimizer):
            if self.precision_plugin.optimizer_step(self._stand_in(optimizer)):
                optimizer.step()
                return 1
            return 0
        return super().optimizer_step(optimizer, closure)

    def _asks_for_overflows(self) -> bool:
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is None or self.world_size == 1:
            return False
        overflow.agree(scaler)
        return True

    def _stand_in(self, optimizer: Optimizer) -> Optimizer:
        if optimizer not in self._stand_ins:
            self._stand_ins[optimizer] = overflow.stand_in(self.root_device)
        return self._stand_ins[optimizer]

    def _unscale(self, optimizer: Optimizer) -> None:
        """All ranks. Bring gradients back to their true size."""
        lacks = self._asks_for_overflows() and not overflow.has_gradients(optimizer)
        self.precision_plugin.unscale_gradients(self._stand_in(optimizer) if lacks else optimizer)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip over all axes; see `Strategy.clip_gradients`."""
        self._unscale(optimizer)
        owner: Any = super() if self._is_in_parts else super(FSDPStrategy, self)
        clipped: Tensor | None = owner.clip_gradients(module, optimizer, clipping)
        return clipped

    def norm_of(self, gradients: Sequence[Tensor], norm_type: float) -> Tensor | None:
        """All ranks. The norm of gradients that torch's `clip_grad_norm_` is given; None if torch
        can take it.
        """
        has_meshes = len(torch_clipping.by_mesh(gradients)) > 1
        return averages.norm_of(gradients, norm_type, None) if has_meshes else None

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names: in parts as under `fsdp`, else whole on all
        ranks.
        """
        if self._is_in_parts:
            return super().get_module_state_dict(module, layout=layout)
        return super(FSDPStrategy, self).get_module_state_dict(module)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. State by parameter names: in parts as under `fsdp`, else whole on all
        ranks.
        """
        if self._is_in_parts:
            return super().get_optimizer_state_dict(optimizer)
        return super(FSDPStrategy, self).get_optimizer_state_dict(optimizer)

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        torch_clipping.leave(self)
        self._contexts.clear()
        self._gradient_terms = None
        self._blocks.clear()
        self._unlike.clear()
        self._stand_ins.clear()
        self._modules_of_experts.clear()
        while self._undo:
            self._undo.pop()()

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


def _called(user: nn.Module) -> list[nn.Module]:
    """The modules that a step may call with a sequence: the user's own, and those in it."""
    return [
        user,
        *(child for child in user.children() if next(child.parameters(), None) is not None),
    ]
