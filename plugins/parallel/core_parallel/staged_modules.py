"""Set-up of a model that is cut into stages, over the ranks of a pipeline, and its state."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.distributed.tensor import DTensor

from core import ShardedLeaf
from core.strategies import refuse_sparse_layers, refuse_unlike_modules
from core_fsdp.gradients import parameters_of
from core_parallel.communication import averages
from core_parallel.communication.point_to_point import Line
from core_parallel.experts import expert_modules
from core_parallel.mesh import sizes
from core_parallel.mesh.placements import cut_axes
from core_parallel.mesh_strategy import MeshStrategy
from core_parallel.modules import absent, compiled_parts, torch_clipping
from core_parallel.pipeline import batch_norms, schedules, state
from core_parallel.pipeline.chain import Chain
from core_parallel.pipeline.draws import Draws
from core_parallel.pipeline.peers import Peers
from core_parallel.stages import hollow, part_times, parts, shards
from core_parallel.stages.layout import Layout
from core_parallel.stages.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core_parallel.pipeline.scheduled_step import ScheduledStep
    from core_parallel.stages import balance as balances

_log = logging.getLogger(__name__)
_ELSEWHERE = (
    "another rank of the pipeline has it. Parts run in their turn, inside the one model that was "
    "cut: call that, in a step of the Trainer, and on all ranks."
)
COPIES = (
    ("data", "context"),
    ("data", "context", "shard"),
    ("data", "context", "tensor"),
    ("data", "context", "shard", "tensor"),
)
"""The axes along which ranks have the same part of a tensor, by the axes over which it is cut."""


class StagedModules(MeshStrategy):
    """Cuts modules into stages, and lets go of those that other ranks have. Hands over and restores
    the state of these modules and of their optimizers: whole on rank 0, or in parts.
    """

    _parts: Sequence[str | Callable[..., Any]] | str | None
    _balance: balances.Balance
    _microbatches: int | None
    _schedule: schedules.Schedule | None
    _stages_per_rank: int

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._chains: dict[nn.Module, Chain] = {}
        self._seconds: dict[nn.Module, Sequence[float]] = {}
        self._scheduled: dict[nn.Module, ScheduledStep] = {}
        self._guards: list[RemovableHandle] = []

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
        self._refuse_uncuttable(module)
        torch_clipping.follow(self)
        compiler, self.session.compiler = self.session.compiler, None  # of parts, and not of steps
        if compiler is not None:
            schedules.refuse_compiled(self._schedule)
        refuse_unlike_modules(self, module)
        refuse_sparse_layers(self, module)
        line = Line(group, self.root_device)
        layout = self._lay_out(module, line)
        self._set_up_stages(module, layout, line)
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
            cut = replace(cut, called=cut.called[:1])
        return Layout(module, cut, size, position, in_v=self._in_v)

    @property
    def _in_v(self) -> bool:
        """True if a rank's stages lie in the form of a V."""
        return self._schedule is not None and self._schedule.in_v

    def _set_up_stages(self, module: nn.Module, layout: Layout, line: Line) -> None:
        owners = layout.owners()
        if self.sizes.shard > 1:
            shards.check(layout)
        is_cut = any(isinstance(one, absent.AbsentTensor) for one in module.parameters())
        found: list[expert_modules.ExpertModule] = []
        styles: dict[str, ParallelStyle] = {}
        if not is_cut:
            found = self._planned_experts(module)
            expert_modules.check_owners(found, owners)
            styles = self._planned(module, found)
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
        chain = self._chains[module]
        shard = super().configure_sharding if self.sizes.shard > 1 else None
        chain.shards = Shards(layout, shard, self._axis("shard"), self.root_device)
        if self._experts_mesh is not None:
            chain.peers = Peers(self._experts_mesh.get_group("expert"), self.root_device)
        for axes in COPIES:  # groups are made by all ranks, in one order
            self._axis(*axes)

    def _cut(self, module: nn.Module, layout: Layout, line: Line) -> None:
        microbatches = self._number_of_microbatches(layout)
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
        if self._schedule is not None:
            from core_parallel.pipeline.scheduled_step import (
                ScheduledStep,  # torch.distributed.pipelining takes a while to import
            )

            sequence = next(iter(self._contexts_of(module, [layout.module])), None)
            self._scheduled[module] = ScheduledStep(
                chain,
                self._schedule,
                draws,
                microbatches,
                self._context,
                self._loss_scale,
                sequence,
            )

    def _number_of_microbatches(self, layout: Layout) -> int | None:
        return batch_norms.microbatches_for(layout, self._microbatches, self._schedule)

    def _context(self) -> AbstractContextManager[Any]:
        return self.forward_context() or nullcontext()

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

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Module state by the user's names: whole on rank 0 and nothing elsewhere, or
        each rank's part.
        """
        own = self.session.handle_of(module).module
        chain = self._chains.get(own)
        if chain is None:
            return super().get_module_state_dict(module, layout=layout)
        layout = layout or self.checkpoint_io.layout
        self._reshard()
        named = state.module_state(
            self.session.module_state(module),
            list(own.state_dict(keep_vars=True).values()),
            chain.layout.owners(),
            self._leaf_converter(layout, chain),
        )
        return self._handed_over(named, layout)

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
            group = self._axis(*axes)
            if group is not None:
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
        return self._handed_over(named, layout)

    def _handed_over(self, named: dict[str, Any], layout: str) -> dict[str, Any]:
        """A state in parts, of each rank; a whole one, of rank 0."""
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

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules, and let absent parts be called again."""
        super().release()
        self._chains.clear()
        self._scheduled.clear()
        while self._guards:
            self._guards.pop().remove()
