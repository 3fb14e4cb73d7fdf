"""States of what a Booster trains: canonical ones, or marks that stand for Colossal-AI's own
files.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch

from core_colossalai import native, native_files
from core_colossalai.zero import LowLevelZeroEngine
from core_ddp import DDPStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core_colossalai.engine import Engine
    from core_colossalai.options import ColossalAIOptions, PluginName


class BoostedStates(DDPStrategy):
    """Base of `ColossalAIStrategy`: reads and restores the state of modules and optimizers.

    Attributes:
        options: as the user gave them.
        plugin: of the Booster.
        colossalai_checkpoint: the layout, `"canonical"` or `"native"`.
        engine: of what is cut; None before it is set up, and with `torch_ddp`.
    """

    options: ColossalAIOptions
    plugin: PluginName
    colossalai_checkpoint: Literal["canonical", "native"]
    engine: Engine | None

    @property
    def replicates(self) -> bool:
        """True if each rank has the whole model and the whole optimizer: `torch_ddp`."""
        return self.plugin == "torch_ddp"

    @property
    def calls_forward(self) -> bool:
        """True if a model is called by its forward only: Shardformer, which shares out layers,
        looks at its class.
        """
        return self.plugin == "hybrid_parallel" or (
            self.plugin == "gemini" and (self.options.tp_size or 1) > 1
        )

    @property
    def _is_native(self) -> bool:
        return self.colossalai_checkpoint == "native"

    @property
    def saves_whole(self) -> bool:
        """True if Colossal-AI's own files hold whole tensors, which the core can read: all but
        Gemini and hybrid.
        """
        return self.replicates or self.plugin == "low_level_zero"

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """All ranks. The module's state by the user's names, of what is in 16 bits the masters.

        In Colossal-AI's own layout a mark stands for it.
        """
        named = super().get_module_state_dict(module, layout=layout)
        if (
            self._is_native
            and layout is None
            and (self.replicates or self._engine_of(module) is not None)
        ):
            return self._module_mark(module, list(named))
        if (engine := self._engine_of(module)) is not None:
            values = engine.module_values()
            for name, original in self._originals(module, named).items():
                named[name] = values.get(original, named[name])
        return named

    def _module_mark(self, module: nn.Module, names: list[str]) -> dict[str, Any]:
        handle = self.session.handle_of(module)
        index = next(index for index, one in enumerate(self.session.handles) if one is handle)
        # Gemini walks through the router itself, and the others through what stands in for the
        # user's module.
        is_walked = self.plugin == "gemini" and not self.calls_forward
        prefix = "module." if is_walked else ""
        own = (prefix + name for name in handle.module.state_dict())
        name = native_files.numbered(native_files.MODEL, index)
        return native_files.module_mark(name, dict(zip(own, names, strict=True)))

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """All ranks. Restore what `get_module_state_dict` returned, in place."""
        if native_files.is_mark(state) and self.engine is not None:
            native.load_model(self.engine, state, strict=strict)
            return
        super().load_module_state_dict(module, state, strict=strict)
        if (engine := self._engine_of(module)) is not None:
            originals = self._originals(module, super().get_module_state_dict(module))
            engine.load_values(
                {one: state[name] for name, one in originals.items() if name in state}
            )

    def _engine_of(self, module: nn.Module) -> Engine | None:
        return (
            self.engine
            if self.engine and self.session.handle_of(module).module is self.engine.module
            else None
        )

    def _originals(self, module: nn.Module, named: Mapping[str, Any]) -> dict[str, Tensor]:
        """Parameters and buffers themselves by canonical names, in the order of the module's own
        state.
        """
        own = self.session.handle_of(module).module.state_dict(keep_vars=True)
        return {
            name: value
            for name, value in zip(named, own.values(), strict=True)
            if isinstance(value, torch.Tensor)
        }

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """All ranks. The optimizer's state by parameter names, with whole tensors; or a mark, as
        for a module.
        """
        if self._is_native:
            return self._optimizer_mark(optimizer)
        engine = self._zero_engine()
        if engine is None:
            return super().get_optimizer_state_dict(optimizer)
        with engine.all_parameters():
            state = optimizer.state_dict()
        names = self.parameter_names(optimizer)
        groups = [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in state["param_groups"]
        ]
        entries = engine.whole_entries(state["state"])
        return {
            **state,
            "state": {names[index]: entry for index, entry in entries.items()},
            "param_groups": groups,
        }

    def _optimizer_mark(self, optimizer: Optimizer) -> dict[str, Any]:
        index = next(index for index, one in enumerate(self.optimizers) if one is optimizer)
        own = [group["params"] for group in optimizer.param_groups]
        given = own if self.engine is None else self.engine.given_groups
        names = dict(zip(map(id, chain(*given)), self.parameter_names(optimizer), strict=True))
        groups = [
            {**group, "params": [names[id(one)] for one in parameters]}
            for group, parameters in zip(optimizer.param_groups, given, strict=True)
        ]
        # ZeRO counts what it steps, and nothing else.
        counted = (
            self.engine.trained
            if isinstance(self.engine, LowLevelZeroEngine)
            else set(chain(*given))
        )
        in_order = [names[id(one)] for one in chain(*given) if one in counted]
        return native_files.optimizer_mark(
            native_files.numbered(native_files.OPTIMIZER, index), in_order, groups
        )

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """All ranks. Restore a whole state; each rank takes its parts."""
        if native_files.is_mark(state) and self.engine is not None:
            native.load_optimizer(self.engine, state)
            return
        engine = self._zero_engine()
        if engine is None:
            super().load_optimizer_state_dict(optimizer, state)
            return
        positions = {name: index for index, name in enumerate(self.parameter_names(optimizer))}
        own = engine.own_entries(
            {positions.get(name, name): entry for name, entry in state["state"].items()}
        )
        named = {name: own[positions.get(name, name)] for name in state["state"]}
        with engine.all_parameters():
            super().load_optimizer_state_dict(optimizer, {**state, "state": named})

    def optimizer_targets(
        self, optimizer: Optimizer, described: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All ranks. Where saved tensors go while they are read; what is cut is read whole."""
        return None if self.engine is not None else super().optimizer_targets(optimizer, described)

    def parameter_names(self, optimizer: Optimizer) -> list[str]:
        """Names of the parameters that the optimizer was made for, group after group."""
        if self.engine is None:
            return super().parameter_names(optimizer)
        names = self.session.handle_of(self.engine.module).parameter_names
        return [names[id(parameter)] for group in self.engine.given_groups for parameter in group]

    def _zero_engine(self) -> LowLevelZeroEngine | None:
        if self.engine is None or isinstance(self.engine, LowLevelZeroEngine):
            return self.engine
        self.engine.module_values()  # says why there is no such state
        return None
