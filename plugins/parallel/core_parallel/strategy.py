"""A model cut into stages, over the ranks of a pipeline; data split over several of these.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core import Capability, ConfigurationError, ShardedLeaf
from core.data import size_of
from core.session import ReplacedParameters
from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_fsdp.same_batches import SameBatches
from core_parallel.communication import averages
from core_parallel.communication.point_to_point import Line
from core_parallel.context.sequence import check_whole_batches, in_parts, newest_turn
from core_parallel.experts import expert_modules, expert_shards
from core_parallel.mesh import sizes
from core_parallel.mesh.placements import cut_axes, placed_like
from core_parallel.mesh_strategy import MeshStrategy
from core_parallel.modules import absent, compiled_parts, forwards, torch_clipping
from core_parallel.pipeline import batch_norms, schedules, state, trial
from core_parallel.pipeline.chain import Chain
from core_parallel.pipeline.draws import Draws
from core_parallel.pipeline.peers import Peers
from core_parallel.stages import balance as balances
from core_parallel.stages import hollow, named_parts, part_times, parts, shards
from core_parallel.stages.layout import Layout, stage_owners
from core_parallel.stages.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core import GradientClipping
    from core.contract import Awaited
    from core_parallel.explained.placed_model import PlacedModel
    from core_parallel.pipeline.scheduled_step import ScheduledStep

_log = logging.getLogger(__name__)
_ELSEWHERE = (
    "another rank of the pipeline has it. Parts run in their turn, inside the one model that was "
    "cut: call that, in a step of the Trainer, and on all ranks."
)
_COPIES = (
    ("data", "context"),
    ("data", "context", "shard"),
    ("data", "context", "tensor"),
    ("data", "context", "shard", "tensor"),
)
"""The axes along which ranks have the same part of a tensor, by the axes over which it is cut."""


class MeshParallelStrategy(MeshStrategy):
    """Pipeline, data, shard, context, tensor and expert parallelism on one mesh, whose sizes
    multiply to the processes.

    With `pipeline` the model is cut into stages, one a rank. It says what its parts are, and
    nothing else changes:

        def pipeline(self):
            return [self.embed, *self.blocks, self.head]

    An `nn.Sequential` needs nothing, nor do models of transformers with a plan in their config;
    others that can't be changed need `parts`, their names. Ranks of one pipeline get the same
    batches, and run the user's step alike; the call of the model in it runs all stages.

    `core_parallel.ParallelStrategy`, its earlier name, is the same class until 1.0.
    """

    def __init__(
        self,
        *given: Any,
        data: sizes.Size = "auto",
        shard: sizes.Size = 1,
        tensor: sizes.Size = 1,
        pipeline: sizes.Size = 1,
        context: sizes.Size = 1,
        expert: sizes.Size = 1,
        tensor_plan: Mapping[str, Any] | None = None,
        tensor_loss: Literal["whole", "local"] = "whole",
        expert_plan: Sequence[str] | Mapping[str, Any] | None = None,
        context_attention: Literal["ulysses", "gather"] = "ulysses",
        context_dim: int = 1,
        context_loss: Literal["whole", "local"] = "whole",
        parts: Sequence[str | Callable[..., Any]] | None = None,
        balance: Literal["parameters", "time"] | Sequence[int] = "parameters",
        microbatches: int | Literal["auto"] = "auto",
        schedule: str | None = None,
        stages_per_rank: int | Literal["auto"] = "auto",
        **options: Any,
    ) -> None:
        """Sizes of the mesh, how a pipeline runs, and options of every parallel strategy.

        Args:
            given: an accelerator, a list of devices and other parts, without their names.
            data: copies of what the other axes make, each with its own data. `"auto"` is what they
                leave over.
            shard: over how many ranks, each with its own data, parameters and optimizer state are
                sharded.
            tensor: over how many ranks, which follow each other, a layer is cut.
            pipeline: over how many ranks the layers are split. `"auto"` is what the other axes
                leave over.
            context: over how many ranks a sequence is cut.
            expert: over how many neighbours along data, shard and context the experts of a layer
                are distributed. `"auto"` is all of them.
            tensor_plan: how layers are cut, by their names, in transformers' words (`"colwise"`,
                `"rowwise"`, ...) or torch's styles. None asks the model, and its config.
            tensor_loss: `"whole"` gives all ranks the logits of all words; with `"local"` each
                keeps those of its own, which a head cut by `"colwise_gather_output"` computes, and
                the step takes `cross_entropy` of them.
            expert_plan: names of the modules whose parameters are experts; `*` stands for one part
                of a name. None asks the model, and its config, and else recognizes modules of
                experts.
            context_attention: what is exchanged so that attention sees the whole sequence:
                `"ulysses"` exchanges heads, whose number `context` divides; `"gather"` keys and
                values.
            context_dim: of the tensors that the model is given and returns, the one that is the
                sequence.
            context_loss: `"whole"` gives all ranks what the model returns; with `"local"` each
                keeps its own positions, such as logits, of which the step takes `cross_entropy`
                with whole labels.
            parts: names of a pipeline's modules in the order in which they are applied, for a model
                that has no `pipeline()`; `*` stands for one part of a name. Functions may stand
                between them. Or the one of several models that is cut, by its name.
            balance: how many parts each stage gets: `"parameters"` makes the largest stage as small
                as can be, and `"time"` the slowest as fast, by runs of forward on the module's
                `example_input_array`; or a list of numbers, in which functions go with the module
                before them, and don't count.
            microbatches: into how many a rank's batch is cut. `"auto"` is the largest number up to
                twice the stages that divides the batch, and 1 for a model with batch norms.
            schedule: one of torch's, such as `"1F1B"`: training steps run for one microbatch at a
                time, and a rank keeps fewer activations. None: a step sees its whole batch, on all
                ranks.
            stages_per_rank: how many stages each rank has. `"auto"` is 2 where the schedule has
                several, else 1.
            options: of `FSDPStrategy` where parameters are sharded, and of every parallel strategy
                (`start_method`, `process_group_backend`, `timeout`, ...).

        Raises:
            ConfigurationError: an unknown option, or a value that isn't one.
        """
        super().__init__(*given, **options)
        axes = {
            "pipeline": pipeline,
            "data": data,
            "shard": shard,
            "context": context,
            "tensor": tensor,
        }
        self._lay_axes(
            {**axes, "expert": expert},
            tensor_plan=tensor_plan,
            tensor_loss=tensor_loss,
            expert_plan=expert_plan,
            context_attention=context_attention,
            context_dim=context_dim,
            context_loss=context_loss,
            options=options,
        )
        self._parts, self._balance = named_parts.parse(parts), balances.parse(balance)
        self._microbatches = sizes.parse("microbatches", microbatches)
        self._schedule = schedules.find(schedule)
        self._stages_per_rank = schedules.stages_per_rank(
            sizes.parse("stages_per_rank", stages_per_rank), self._schedule
        )
        if pipeline != 1:
            self._replaced = ReplacedParameters(_placed)
        self._same_batches = SameBatches()
        self._chains: dict[nn.Module, Chain] = {}
        self._seconds: dict[nn.Module, Sequence[float]] = {}
        self._scheduled: dict[nn.Module, ScheduledStep] = {}
        self._guards: list[RemovableHandle] = []

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, accumulation without communication, and
        state in parts.
        """
        return super().capabilities | (
            Capability.NONE if self._schedule is None else Capability.COMPUTES_LOSS
        )

    # module ---------------------------------------------------------------------------------------

    def init_context(self, *, empty: bool = False) -> AbstractContextManager[Any]:
        """All ranks. A context in which a model is built on the CPU; what a rank has of it goes to
        its device later.

        Args:
            empty: build it on meta, without memory: `setup_module` gives memory to what a rank has,
                and values from each submodule's `reset_parameters()`.
        """
        return super().init_context(empty=empty and (self._is_in_parts or self.sizes.pipeline > 1))

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Begin with rank 0's weights, and let go of the stages that other ranks have.

        Raises:
            ModuleError: the module can't be cut, or ranks have built different ones.
            ConfigurationError: it is to be compiled, and the schedule can't.
        """
        group = self._axis("pipeline")
        if group is None:
            return super().setup_module(module)
        self._check_hooks(module)
        torch_clipping.follow(self)
        if self.sizes.context > 1:
            check_whole_batches(module)
        compiler, self.session.compiler = self.session.compiler, None  # of parts, and not of steps
        if compiler is not None:
            schedules.refuse_compiled(self._schedule)
        refuse_unlike_modules(self, module)
        refuse_sparse_layers(self, module)
        line = Line(group, self.root_device)
        layout = self._lay_out(module, line)
        owners = layout.owners()
        if self.sizes.shard > 1:
            shards.check(layout)
        is_cut = any(isinstance(one, absent.AbsentTensor) for one in module.parameters())
        found = [] if is_cut else self._planned_experts(module)
        expert_modules.check_owners(found, owners)
        styles = {} if is_cut else self._planned(module, found)
        if not any(map(absent.is_absent, module.parameters())):
            self._begin_alike(
                module, lambda one: owners.get(id(one), line.position) == line.position
            )
        self.model = self.precision_plugin.convert_module(module)
        self._cut(module, layout, line)
        self._distribute(found)
        self._cut_planned(module, styles)
        cut = [*styles, *(one.name for one in found)]
        self._guards += hollow.guard(layout.modules_between(cut))
        shard = super().configure_sharding if self.sizes.shard > 1 else None
        self._chains[module].shards = Shards(layout, shard, self._axis("shard"), self.root_device)
        if self._experts_mesh is not None:
            self._chains[module].peers = Peers(
                self._experts_mesh.get_group("expert"), self.root_device
            )
        for axes in _COPIES:  # groups are made by all ranks, in one order
            self._axis(*axes)
        self.module_to_device(module)
        self._leave_out_of_graphs(module, [layout.module], compiles=compiler is not None)
        if compiler is not None:
            own = [part for stage in layout.own_stages for part in layout.cut.stages[stage]]
            self._undo.append(compiled_parts.compile_parts(own, compiler))
        return self.model

    def _lay_out(self, module: nn.Module, line: Line) -> Layout:
        def measure(modules: Sequence[nn.Module]) -> Sequence[float]:
            if module not in self._seconds:  # one that is set up again has let go of parts
                self._seconds[module] = part_times.agreed(self, module, modules)
            return self._seconds[module]

        return self._layout_of(module, line.size, line.position, self._balance, measure)

    def _layout_of(
        self,
        module: nn.Module,
        size: int,
        position: int,
        balance: balances.Balance,
        measure: balances.Measure | None = None,
    ) -> Layout:
        cut = parts.cut(module, size * self._stages_per_rank, self._parts, balance, measure)
        if self.sizes.context > 1:  # the call of one module is made in parts of the sequence
            cut = replace(cut, inner=None)
        in_v = self._schedule is not None and self._schedule.in_v
        return Layout(module, cut, size, position, in_v=in_v)

    def _cut(self, module: nn.Module, layout: Layout, line: Line) -> None:
        schedule = self._schedule
        repeated = layout.modules_around() if layout.needs_call else ()
        microbatches = batch_norms.microbatches_for(module, self._microbatches, schedule, repeated)
        self._share_random_state()
        self._replaced.remember(module)
        freed = absent.drop(
            [part for _, part in layout.absent_modules()], self.root_device, layout.owners()
        )
        if freed and self.is_global_zero:
            _log.info(
                "%s was built whole on every rank, and rank 0 has let go of %.0f MiB that other "
                "stages have. Built on meta, in configure_model, it is whole on none.",
                type(module).__name__,
                freed / (1 << 20),
            )
        self._guards += absent.guard(layout.absent_modules(), _ELSEWHERE)
        one = self.sizes
        stream = self.global_rank // one.tensor % (one.data * one.shard * one.context)
        draws = Draws(self.accelerator, self.root_device, stream)
        self._chains[module] = chain = Chain(layout, line, draws, microbatches, self._context)
        if schedule is not None:
            from core_parallel.pipeline.scheduled_step import (
                ScheduledStep,  # torch.distributed.pipelining takes a while to import
            )

            sequence = next(iter(self._contexts_of(module, [layout.module])), None)
            self._scheduled[module] = ScheduledStep(
                chain,
                schedule,
                draws,
                microbatches,
                self._context,
                self._loss_scale,
                sequence,
                self._deciding(),
            )

    def _context(self) -> AbstractContextManager[Any]:
        context = self.forward_context()
        return nullcontext() if context is None else context

    def _loss_scale(self) -> float:
        """The number by which losses are multiplied so that small gradients survive."""
        return float(self.precision_plugin.state_dict().get("scale", 1.0))

    def _accumulates_whole(self, module: nn.Module) -> bool:
        # a schedule's gradients are taken from their parameters in each step
        return module not in self._scheduled

    def module_to_device(self, module: nn.Module) -> None:
        """All ranks. Move the parameters and buffers that this rank has to `root_device`."""
        if module not in self._chains:
            super().module_to_device(module)
            return
        for one in (*module.parameters(), *module.buffers()):
            if not one.is_meta and not isinstance(one, DTensor):  # those are where they have to be
                one.data = one.data.to(self.root_device)

    # before a run ---------------------------------------------------------------------------------

    def explain_layout(self, module: nn.Module | None) -> Iterator[tuple[str, str, str]]:
        """One process, without a group. Rows about the mesh, a model on it, and what is sent; see
        `ExplainsLayout`.
        """
        from core_parallel.explained import mesh_rows, model_rows, sent  # only `core explain` asks

        one, schedule = self.sizes, self._schedule
        in_v = schedule is not None and schedule.in_v
        yield from mesh_rows.rows(
            one, stage_owners(one.pipeline * self._stages_per_rank, one.pipeline, in_v=in_v)
        )
        if module is not None and self.world_size > 1:
            if self._balance == "time" and one.pipeline > 1:
                yield (
                    "balance",
                    "parameters",
                    "balance='time' is measured when a run begins, and may cut elsewhere",
                )
            placed = self._placed_model(module)
            yield from model_rows.rows(placed)
            yield from sent.rows(placed)

    def _placed_model(self, module: nn.Module) -> PlacedModel:
        """One process, without a group. The module as `setup_module` would lay it out, with the
        same refusals.
        """
        from core_parallel.explained.placed_model import PlacedModel

        one = self.sizes
        self._check_hooks(module)
        refuse_sparse_layers(self, module)
        if one.context > 1:
            check_whole_batches(module)
        found = (
            expert_modules.divided(module, self._expert_plan, one.expert) if one.expert > 1 else []
        )
        expert_shards.check(found, one.expert, one.of_experts[1])
        layout = None
        if one.pipeline > 1:
            balance = "parameters" if self._balance == "time" else self._balance
            layout = self._layout_of(module, one.pipeline, 0, balance)
            schedule, repeated = (
                self._schedule,
                layout.modules_around() if layout.needs_call else (),
            )
            batch_norms.microbatches_for(module, self._microbatches, schedule, repeated)
            expert_modules.check_owners(found, layout.owners())
            if one.shard > 1:
                shards.check(layout)
        return PlacedModel(
            self.precision_plugin.convert_module(module),
            one,
            self.precision_plugin.formats,
            layout,
            styles=self._planned(module, found),
            experts=found,
            **self._gathering(module, layout),
        )

    # optimizers -----------------------------------------------------------------------------------

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. Replace the parameters that another rank has in an optimizer that was made
        before.

        Raises:
            ConfigurationError: it needs all parameters on one rank.
        """
        if isinstance(optimizer, torch.optim.LBFGS) and self._chains:
            raise ConfigurationError(
                "LBFGS makes one vector of all parameters, of which each rank of a pipeline has a "
                "part. Use an optimizer that works parameter by parameter, such as AdamW or SGD."
            )
        if self._chains and not self._is_in_parts:
            for handle in self.session.handles:
                # an identity that was replaced may be that of another object by now
                handle.original_names.clear()
            self._replaced.rebind(optimizer)
            return optimizer
        return super().setup_optimizer(optimizer)

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. The user's method, in which the call of the model that was cut
        runs all stages.

        Ranks that share their data compare the first and every 100th batch.
        """
        own = self.session.handle_of(module).module
        self._check_hooks(own)
        call = self._step(name, module)
        compared, chain = (
            self._same_batches.around(name, call, self._sharing, self.root_device),
            self._chains.get(own),
        )
        if chain is None:
            return compared
        # Within a schedule a call is of one microbatch, and not all ranks make it.
        return lambda *args, **kwargs: (compared if chain.answer is None else call)(*args, **kwargs)

    def _step(self, name: str, module: nn.Module | None) -> Callable[..., Any]:
        handle = self.session.handle_of(module)
        method = handle.user_callable(name)
        chain = self._chains.get(handle.module)
        if chain is None:
            return super().step_callable(name, module)

        scheduled = self._scheduled.get(handle.module) if name == "training_step" else None
        if scheduled is not None:
            _refuse_manual(handle.module)

        contexts = self._contexts_of(handle.module, [chain.layout.module])

        def call(*args: Any, **kwargs: Any) -> Any:
            self._began = newest_turn(contexts) if scheduled is None else -1
            chain.num_samples = size_of(args[0]) if args and name != "forward" else None
            compared = (
                self._compared(handle.module, (args, kwargs))
                if chain.answer is None
                else nullcontext()
            )
            with compared, _answering(chain), in_parts(contexts):
                if scheduled is None:
                    return method(*args, **kwargs)
                batch, *others = args
                step = partial(_step_of, method, others, kwargs)
                return scheduled(
                    step,
                    batch,
                    handle.module,
                    partial(_trial_of, name, handle.module, chain, others, kwargs),
                )

        return call

    def compute_loss(self, step: Callable[[Any], Any], batch: Any, module: nn.Module) -> Any:
        """All ranks. The loss of a batch by the schedule; see `ComputesLoss`."""
        handle = self.session.handle_of(module)
        scheduled = self._scheduled.get(handle.module)
        if scheduled is None:
            return step(batch)
        self._same_batches.check("compute_loss", batch, self._sharing, self.root_device)
        return scheduled(
            step, batch, handle.module, partial(trial.Trial, handle.module, step), nullcontext
        )

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip over all stages; see `Strategy.clip_gradients`."""
        if clipping.algorithm != "norm" or not self._chains:
            return super().clip_gradients(module, optimizer, clipping)
        self._unscale(optimizer)
        self._reshard()
        chain = self._chains[self.session.handle_of(module).module]
        learning = [one for group in optimizer.param_groups for one in group["params"]]
        owners = chain.layout.owners()
        # What every rank has is counted by the first.
        counted = [one for one in learning if owners.get(id(one), 0) == chain.line.position]
        return averages.clip_by_norm(learning, counted, clipping, chain.line)

    def norm_of(self, gradients: Sequence[Tensor], norm_type: float) -> Tensor | None:
        """All ranks. The norm of gradients that torch's `clip_grad_norm_` is given, over the stages
        that have some.
        """
        chains, owners = self._chains, self._owners()
        own = {
            id(one.grad): owners.get(id(one), 0)
            for each in chains
            for one in each.parameters()
            if not one.is_meta
        }
        if not chains or (gradients and own.keys().isdisjoint(map(id, gradients))):
            return super().norm_of(gradients, norm_type)
        line = next(iter(chains.values())).line
        counted = [one for one in gradients if own.get(id(one), 0) == line.position]
        return averages.norm_of(counted, norm_type, line)

    def awaited(self) -> Awaited | None:
        """Any thread. The messages for which this rank waits along its pipeline; see
        `AwaitsRanks`.
        """
        return next(
            filter(None, [chain.line.awaited() for chain in [*self._chains.values()]]), None
        )

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names: whole on rank 0 and nothing elsewhere, or
        each rank's part.
        """
        layout, own = layout or self.checkpoint_io.layout, self.session.handle_of(module).module
        if (chain := self._chains.get(own)) is None:
            named = super().get_module_state_dict(module, layout=layout)
        else:
            self._reshard()
            named, originals = (
                self.session.module_state(module),
                list(own.state_dict(keep_vars=True).values()),
            )
            named = state.module_state(
                named, originals, chain.layout.owners(), self._leaf_converter(layout, chain)
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
        for axes in _COPIES:
            cut = {"shard", "tensor"}.difference(axes)
            if (group := self._axis(*axes)) is not None:
                averages.copy_from_first([one for one in tensors if cut_axes(one) == cut], group)
        if self._experts_mesh is not None:
            expert_modules.copy_to_others(tensors, self._experts_mesh)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. State by parameter names: whole on rank 0 and nothing elsewhere, or each
        rank's part.
        """
        layout = self.checkpoint_io.layout
        if not self._chains:
            named = super().get_optimizer_state_dict(optimizer)
        else:
            self._reshard()
            named = self.session.optimizer_state(optimizer)
            chain, owners = next(iter(self._chains.values())), self._owners()
            of_names = {
                name: owners.get(id(parameter))
                for name, parameter in self._named_parameters(optimizer).items()
            }
            named = state.optimizer_state(
                named, of_names, chain.line, self._leaf_converter(layout, chain)
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
            return state.PartedState(
                position, place, expert_modules.coordinates(self._experts_mesh)
            ).leaf
        return state.WholeState(chain.line, not any(place.values())).leaf

    @property
    def pipelines(self) -> list[tuple[Chain, ScheduledStep | None]]:
        """The modules that were cut into stages, and their steps by a schedule."""
        return [(chain, self._scheduled.get(module)) for module, chain in self._chains.items()]

    def _owners(self) -> dict[int, int]:
        return {
            key: owner
            for chain in self._chains.values()
            for key, owner in chain.layout.owners().items()
        }

    def _named_parameters(self, optimizer: Optimizer) -> dict[str, Tensor]:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        return dict(zip(self.parameter_names(optimizer), parameters, strict=True))

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules, and let absent parts be called again."""
        super().release()
        self._chains.clear()
        self._scheduled.clear()
        while self._guards:
            self._guards.pop().remove()


def _refuse_manual(module: nn.Module) -> None:
    if not getattr(module, "automatic_optimization", True):
        raise ConfigurationError(
            f"{type(module).__name__} runs backward itself (automatic_optimization = False), and a "
            "pipeline's schedule runs it for one microbatch after the other. Leave schedule out, "
            "or let the Trainer optimize."
        )


def _step_of(
    method: Callable[..., Any], others: list[Any], kwargs: dict[str, Any], batch: Any
) -> Any:
    return method(batch, *others, **kwargs)


def _trial_of(
    name: str, module: nn.Module, chain: Chain, others: list[Any], kwargs: dict[str, Any]
) -> trial.Trial:
    copied = trial.copied(module, chain)
    return trial.Trial(copied, partial(_step_of, getattr(copied, name), others, kwargs))


@contextmanager
def _answering(chain: Chain) -> Iterator[None]:
    """A context in which the module that was cut answers by all stages. Copies made elsewhere know
    nothing of it.
    """
    with forwards.replaced({one: chain.forward_of(one) for one in chain.layout.cut.called}):
        yield


def _placed(leaf: Any, parameter: Tensor) -> Any:
    """A piece of an optimizer's state beside its parameter: on meta where another rank has that."""
    if getattr(leaf, "shape", None) != parameter.shape:
        return leaf
    if isinstance(parameter, DTensor) and not isinstance(leaf, DTensor):
        return placed_like(leaf, parameter)
    return leaf.to("meta" if parameter.is_meta else parameter.device)
