"""A model cut into stages, over the ranks of a pipeline; data split over several of these.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from core import Capability, ConfigurationError
from core.data import size_of
from core.session import ReplacedParameters
from core.strategies import refuse_sparse_layers
from core_fsdp.gradients import parameters_of
from core_fsdp.same_batches import SameBatches
from core_parallel.communication import averages
from core_parallel.context.sequence import in_parts, newest_turn
from core_parallel.experts import expert_modules, expert_shards
from core_parallel.mesh import combinations, sizes
from core_parallel.modules import forwards, torch_clipping
from core_parallel.pipeline import schedules, state
from core_parallel.pipeline.chain import Chain
from core_parallel.staged_modules import StagedModules
from core_parallel.stages import balance as balances
from core_parallel.stages import named_parts, shards
from core_parallel.stages.layout import stage_owners

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from core import GradientClipping
    from core.contract import Awaited
    from core.session import ModuleHandle
    from core_parallel.pipeline.scheduled_step import ScheduledStep


class MeshParallelStrategy(StagedModules):
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
        expert_plan: Sequence[str] | Mapping[str, Any] | None = None,
        context_attention: Literal["ulysses", "gather"] = "ulysses",
        context_dim: int = 1,
        local_loss: str | Collection[str] = (),
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
            expert_plan: names of the modules whose parameters are experts; `*` stands for one part
                of a name. None asks the model, and its config, and else recognizes modules of
                experts.
            context_attention: what is exchanged so that attention sees the whole sequence:
                `"ulysses"` exchanges heads, whose number `context` divides; `"gather"` keys and
                values.
            context_dim: of the tensors that the model is given and returns, the one that is the
                sequence.
            local_loss: axes along which each rank keeps its part of what the model returns, such as
                logits, of which the step takes `cross_entropy` with whole labels: by `"context"`
                its own positions, by `"tensor"` its own words, which a head cut by
                `"colwise_gather_output"` computes. Without it all ranks get the whole.
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
            "expert": expert,
        }
        self._given = {name: sizes.parse(name, size) for name, size in axes.items()}
        self._tensor_plan, self._expert_plan = tensor_plan, expert_plan
        if context_attention not in ("ulysses", "gather"):
            raise ConfigurationError(
                f"context_attention={context_attention!r}: expected 'ulysses' or 'gather'."
            )
        self._context_options = context_attention, context_dim
        self._local_loss = combinations.parse_local_loss(local_loss)
        combinations.refuse(self, self._given, options, self._local_loss)
        self._parts, self._balance = named_parts.parse(parts), balances.parse(balance)
        self._microbatches = sizes.parse("microbatches", microbatches)
        self._schedule = schedules.find(schedule)
        self._stages_per_rank = schedules.stages_per_rank(
            sizes.parse("stages_per_rank", stages_per_rank), self._schedule
        )
        if pipeline != 1:
            self._replaced = ReplacedParameters(state.placed)
        self._same_batches = SameBatches()

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """The capabilities of every parallel strategy, accumulation without communication, and
        state in parts.
        """
        own = super().capabilities
        if self._schedule is not None:
            own |= Capability.COMPUTES_LOSS
        return own

    @property
    def pipelines(self) -> list[tuple[Chain, ScheduledStep | None]]:
        """The modules that were cut into stages, and their steps by a schedule."""
        return [(chain, self._scheduled.get(module)) for module, chain in self._chains.items()]

    # before a run ---------------------------------------------------------------------------------

    def explain_layout(self, module: nn.Module | None) -> Iterator[tuple[str, str, str]]:
        """One process, without a group. Rows about the mesh and a model; see `ExplainsLayout`."""
        from core_parallel.explained import mesh_rows  # only `core explain` asks

        one = self.sizes
        yield from mesh_rows.rows(
            one, stage_owners(one.pipeline * self._stages_per_rank, one.pipeline, in_v=self._in_v)
        )
        if module is not None and self.world_size > 1:
            if self._balance == "time" and one.pipeline > 1:
                yield (
                    "balance",
                    "parameters",
                    "balance='time' is measured when a run begins, and may cut elsewhere",
                )
            yield from self._model_rows(module)

    def _model_rows(self, module: nn.Module) -> Iterator[tuple[str, str, str]]:
        """One process, without a group. Rows about the module as `setup_module` would lay it out,
        with the same refusals.
        """
        from core_parallel.explained import model_rows

        one = self.sizes
        self._refuse_uncuttable(module)
        refuse_sparse_layers(self, module)
        found = []
        if one.expert > 1:
            found = expert_modules.divided(module, self._expert_plan, one.expert)
        expert_shards.check(found, one.expert, one.of_experts[1])
        layout = None
        if one.pipeline > 1:
            balance = self._balance
            if balance == "time":
                balance = "parameters"
            layout = self._layout_of(module, one.pipeline, 0, balance)
            self._number_of_microbatches(layout)  # refuses as well
            expert_modules.check_owners(found, layout.owners())
            if one.shard > 1:
                shards.check(layout)
        elif one.shard > 1:
            self._check_sharding(module)
        yield from model_rows.rows(one, layout, self._planned(module, found), found)

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
        handle = self.session.handle_of(module)
        chain = self._chains.get(handle.module)
        if chain is None:
            call = super().step_callable(name, module)
            return self._same_batches.around(name, call, self._sharing, self.root_device)
        call = self._through_stages(name, handle, chain)
        compared = self._same_batches.around(name, call, self._sharing, self.root_device)

        def step(*args: Any, **kwargs: Any) -> Any:
            if chain.answer is None:
                return compared(*args, **kwargs)
            # within a schedule: of one microbatch, and not all ranks make it
            return call(*args, **kwargs)

        return step

    def _through_stages(self, name: str, handle: ModuleHandle, chain: Chain) -> Callable[..., Any]:
        self._check_hooks(handle.module)
        method = handle.user_callable(name)
        scheduled = None
        if name == "training_step" and handle.module in self._scheduled:
            scheduled = self._scheduled[handle.module]
            _refuse_manual(handle.module)
        contexts = self._contexts_of(handle.module, [chain.layout.module])

        def call(*args: Any, **kwargs: Any) -> Any:
            self._began = newest_turn(contexts) if scheduled is None else -1
            chain.num_samples = None
            if args and name != "forward":
                chain.num_samples = size_of(args[0])
            followed: AbstractContextManager[None] = nullcontext()
            if chain.answer is None:
                followed = self._followed(handle.module, (args, kwargs))
            answers = {one: chain.forward_of(one) for one in chain.layout.cut.called}
            with followed, forwards.replaced(answers), in_parts(contexts):
                if scheduled is None:
                    return method(*args, **kwargs)
                batch, *others = args
                return scheduled(
                    lambda piece: method(piece, *others, **kwargs), batch, handle.module
                )

        return call

    def compute_loss(self, step: Callable[[Any], Any], batch: Any, module: nn.Module) -> Any:
        """All ranks. The loss of a batch by the schedule; see `ComputesLoss`."""
        handle = self.session.handle_of(module)
        scheduled = self._scheduled.get(handle.module)
        if scheduled is None:
            return step(batch)
        self._same_batches.check("compute_loss", batch, self._sharing, self.root_device)
        return scheduled(step, batch, handle.module, nullcontext)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """All ranks. Clip over all stages; see `Strategy.clip_gradients`."""
        if clipping.algorithm != "norm" or not self._chains:
            return super().clip_gradients(module, optimizer, clipping)
        self._unscale(optimizer)
        self._reshard()
        learning = parameters_of(optimizer)
        norm_type, gradients = clipping.norm_type, [one.grad for one in learning]
        norm = self.norm_of([one for one in gradients if one is not None], norm_type)
        assert norm is not None, "torch leaves out what other stages have"
        total = get_total_norm([norm], norm_type, clipping.error_if_nonfinite)
        torch_clipping.clip(learning, clipping.value, total)
        return total

    def norm_of(self, gradients: Sequence[Tensor], norm_type: float) -> Tensor | None:
        """All ranks. The norm of gradients that torch's `clip_grad_norm_` is given, over the stages
        that have some.
        """
        chains = self._chains
        owners = self._owners()
        own = {
            id(one.grad): owners.get(id(one), 0)
            for each in chains
            for one in each.parameters()
            if not one.is_meta
        }
        if not chains or (gradients and own.keys().isdisjoint(map(id, gradients))):
            return super().norm_of(gradients, norm_type)
        line = next(iter(chains.values())).line
        # What every rank has is counted by the first.
        counted = [one for one in gradients if own.get(id(one), 0) == line.position]
        return averages.norm_of(counted, norm_type, line)

    def awaited(self) -> Awaited | None:
        """Any thread. The messages for which this rank waits along its pipeline; see
        `AwaitsRanks`.
        """
        found = [chain.line.awaited() for chain in [*self._chains.values()]]
        return next(filter(None, found), None)


def _refuse_manual(module: nn.Module) -> None:
    if not getattr(module, "automatic_optimization", True):
        raise ConfigurationError(
            f"{type(module).__name__} runs backward itself (automatic_optimization = False), and a "
            "pipeline's schedule runs it for one microbatch after the other. Leave schedule out, "
            "or let the Trainer optimize."
        )
