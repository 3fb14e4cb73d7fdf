"""States of what DeepSpeed's engines train: canonical ones, or marks that stand for DeepSpeed's own
files.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from core import ShardedLeaf
from core.strategies import ParallelStrategy
from core_deepspeed import native_files
from core_deepspeed import optimizers as stepping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.optim import Optimizer

    from core_deepspeed.engine import ZeroEngine
    from core_deepspeed.options import DeepSpeedOptions


class EngineStates(ParallelStrategy):
    """Base of `DeepSpeedStrategy`: reads and restores the state of modules and optimizers.

    Attributes:
        options: as the user gave them.
        engines: one a module that was set up.
    """

    options: DeepSpeedOptions
    engines: list[ZeroEngine]
    _config: dict[str, Any]

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        return int(self._config["zero_optimization"]["stage"])

    @property
    def _is_native(self) -> bool:
        return self.options.deepspeed_checkpoint == "native"

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. Master copies by the user's names: whole on rank 0 and nothing elsewhere, or
        each rank's part.

        In DeepSpeed's own layout a mark stands for them.
        """
        if self._is_native and layout is None:
            return native_files.module_mark()
        named = super().get_module_state_dict(module)
        handle = self.session.handle_of(module)
        layout = layout or self.checkpoint_io.layout
        if (engine := self._engine_around(handle.wrapped)) is not None:
            state = engine.state(self.global_rank)
            convert = self._converter(layout)
            # The parameters themselves, in the same order: those that are tied are the same object.
            originals = list(handle.module.state_dict(keep_vars=True).values())
            converted = {
                id(one): convert(state.parameter(one))
                for one in originals
                if isinstance(one, nn.Parameter)
            }
            for name, original in zip(list(named), originals, strict=True):
                named[name] = converted.get(id(original), named[name])
        return named if layout == "sharded" or self.is_global_zero else {}

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore a state, whole or in parts; each rank takes its own."""
        handle = self.session.handle_of(module)
        if native_files.is_mark(state):
            return
        if (engine := self._engine_around(handle.wrapped)) is None:
            super().load_module_state_dict(module, state, strict=strict)
            return
        # Parameters go into their masters and parts. In `rest` their place is taken by what the
        # module holds already, so that buffers and names are loaded and checked as for any module.
        parts = engine.state(self.global_rank)
        rest = dict(state)
        originals = handle.module.state_dict(keep_vars=True).values()
        for (name, own), original in zip(
            super().get_module_state_dict(module).items(), originals, strict=True
        ):
            if isinstance(original, nn.Parameter) and name in rest:
                parts.load_parameter(name, original, rest[name])
                rest[name] = own
        super().load_module_state_dict(module, rest, strict=strict)
        parts.refresh()

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. Optimizer state by parameter names: whole on rank 0 and nothing elsewhere, or
        each rank's part.
        """
        engine, layout = self._engine_of(optimizer), self.checkpoint_io.layout
        names, convert = self._names(engine), self._converter(layout)
        groups = [
            {**group, "params": [names[id(parameter)] for parameter in parameters]}
            for group, parameters in zip(optimizer.param_groups, engine.groups, strict=True)
        ]
        if self._is_native:
            return native_files.optimizer_mark(groups)
        entries = {
            name: {key: convert(value) for key, value in entry.items()}
            for name, entry in engine.state(self.global_rank).optimizer_entries(names).items()
        }
        return (
            {"state": entries, "param_groups": groups}
            if layout == "sharded" or self.is_global_zero
            else {}
        )

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore a state, whole or in parts; each rank takes its own."""
        if native_files.is_mark(state):
            return
        engine = self._engine_of(optimizer)
        stepping.load_groups(optimizer, state["param_groups"], self.parameter_names(optimizer))
        engine.state(self.global_rank).load_optimizer(state["state"], self._names(engine))

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. The optimizer's own memory for what was saved, so that each rank reads its
        part into it.
        """
        engine = self._engine_of(optimizer)
        entries = described.get("state")
        if not isinstance(entries, dict):
            return None
        return {
            "state": engine.state(self.global_rank).optimizer_targets(entries, self._names(engine))
        }

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the parameters that the optimizer was made for, group after group."""
        engine = self._engine_of(optimizer)
        names = self._names(engine)
        return [names[id(parameter)] for group in engine.groups for parameter in group]

    def _names(self, engine: ZeroEngine) -> dict[int, str]:
        return self.session.handle_of(engine.module).parameter_names

    def _converter(self, layout: str) -> Callable[[Any], Any]:
        return partial(self._converted, layout)

    def _converted(self, layout: str, value: Any) -> Any:
        if layout == "sharded" or not isinstance(value, ShardedLeaf):
            return value
        gathered = self._gathered(value)
        return gathered.cpu() if self.is_global_zero else None

    def _gathered(self, leaf: ShardedLeaf) -> Tensor:
        total = torch.zeros(leaf.global_shape, dtype=leaf.dtype, device=self.root_device)
        return leaf.gather(total, partial(self.reduce, reduce_op="sum"))

    def _whole_parameters(self, engine: ZeroEngine) -> dict[nn.Parameter, Tensor]:
        """All ranks. Values of what is cut or has masters, as the precision has them; of a cut
        module on the CPU.
        """
        state = engine.state(self.global_rank)
        values: dict[nn.Parameter, Tensor] = {}
        keeps_masters = self.precision_plugin.name.endswith("-mixed")
        for parameter in engine.module.parameters():
            held = state.parameter(parameter)
            if isinstance(held, ShardedLeaf) and (keeps_masters or self.stage == 3):
                value = self._gathered(held)
                value = value if keeps_masters else value.to(parameter.dtype)
                values[parameter] = value.cpu() if self.stage == 3 else value
            elif isinstance(held, torch.Tensor) and keeps_masters and held.dtype != parameter.dtype:
                values[parameter] = held  # a master that is whole
        return values

    def _engine_around(self, wrapped: nn.Module | None) -> ZeroEngine | None:
        return next((engine for engine in self.engines if engine.wrapped is wrapped), None)

    def _engine_of(self, optimizer: Optimizer) -> ZeroEngine:
        return next(engine for engine in self.engines if engine.optimizer is optimizer)
