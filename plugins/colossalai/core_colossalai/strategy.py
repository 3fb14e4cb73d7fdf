"""Colossal-AI's Booster behind one word: data parallelism, ZeRO, Gemini and hybrid parallelism.

Li et al., "Colossal-AI: A Unified Deep Learning System For Large-Scale Parallel Training", ICPP
2023.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from core import Capability, ConfigurationError, Precision, Strategy, UnsupportedError
from core.strategies import (
    FrozenParameters,
    LeftOutParameters,
    ParallelStrategy,
    refuse_unlike_modules,
    with_options_of,
)
from core_colossalai import library, native, precision, refusals
from core_colossalai.boosted_steps import BoostedSteps
from core_colossalai.engine import Engine, ForwardEngine
from core_colossalai.options import ColossalAIOptions, PluginName, split
from core_colossalai.zero import LowLevelZeroEngine
from core_ddp import DDPStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer

    from core import CheckpointIO, SetupHost

_STAYS_FROZEN = (
    "Colossal-AI gives parts of a parameter to the ranks when it is set up, and this one has none. "
    "Unfreeze it before, or use plugin='torch_ddp'."
)


class ColossalAIStrategy(BoostedSteps):
    """Colossal-AI's Booster with one of its plugins, on one node or several.

    With `torch_ddp` gradients are averaged by torch's DistributedDataParallel, as under strategy
    `ddp`. The others take module and optimizer together, convert the model themselves, and step
    parts of it; they need GPUs.
    """

    @with_options_of(ColossalAIOptions, ParallelStrategy.__init__, Strategy.__init__, closed=True)
    def __init__(
        self,
        plugin: PluginName = "torch_ddp",
        *,
        colossalai_checkpoint: Literal["canonical", "native"] = "canonical",
        **options: Any,
    ) -> None:
        """Options of Colossal-AI's plugin, by its own names, and of every parallel strategy.

        Args:
            plugin: `"torch_ddp"` has a replica on each rank; `"low_level_zero"` cuts the
                optimizer's state over them, and gradients with `stage=2`; `"gemini"` parameters
                too, and moves them to the CPU and back; `"hybrid_parallel"` shares the work of a
                layer between ranks, for models that Shardformer knows.
            colossalai_checkpoint: `"canonical"` checkpoints load under any strategy and number of
                processes; `"native"` ones have Colossal-AI's own layout, which its Booster writes.
                There ZeRO, and all that computes in 16 bits, keeps no masters: a run goes on from
                rounded weights.
            options: of `core_colossalai.ColossalAIOptions`, and of `ParallelStrategy`
                (`start_method`, `process_group_backend`, `timeout`, `parallel_devices`, ...).

        Raises:
            ConfigurationError: an unknown option, one of another plugin, or a value that it can't
                have.
        """
        self.options, parts = split(plugin, options)
        if colossalai_checkpoint not in ("canonical", "native"):
            raise ConfigurationError(
                f"colossalai_checkpoint={colossalai_checkpoint!r}: expected 'canonical' or "
                "'native'."
            )
        if self.options.precision is not None:
            if "precision_plugin" in parts:
                raise ConfigurationError(
                    "precision=... and precision_plugin=... are two formats. Leave one out."
                )
            parts["precision_plugin"] = (
                precision.choose(precision.NAMES[self.options.precision]) or Precision()
            )
        super().__init__(find_unused_parameters=self.options.find_unused_parameters, **parts)
        self.plugin: PluginName = plugin
        self.colossalai_checkpoint = colossalai_checkpoint
        self.engine: Engine | None = None
        self.boosted: list[tuple[Any, list[Any]]] = []
        self._to_boost: list[Optimizer] = []
        self._cut = FrozenParameters(_STAYS_FROZEN)

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """Those of `ddp`, and set-up of everything at once; what is cut has one module and one
        optimizer.
        """
        own = super().capabilities | Capability.JOINT_SETUP
        if self._is_native and isinstance(self.precision_plugin, precision.BoostedPrecision):
            own &= ~Capability.BIT_EXACT_RESUME
        if self.replicates:
            return own & ~Capability.BIT_EXACT_RESUME if self.options.fp8_communication else own
        own |= Capability.OWNS_GRADIENTS
        if self.plugin != "low_level_zero":  # keeps gradients where the core can't multiply them
            own &= ~Capability.WEIGHTED_LOSSES
        return own & ~(
            Capability.SEVERAL_MODULES
            | Capability.SEVERAL_OPTIMIZERS
            | Capability.CLIP_BY_VALUE
            | Capability.NO_SYNC
            | Capability.REPLICATED_PARAMETERS
        )

    @property
    def data_parallel_size(self) -> int:
        """Number of shares of the data: ranks that share the work of a layer, or a sequence, have
        one together.
        """
        return self.world_size // self._ranks_of_a_share

    @property
    def data_parallel_rank(self) -> int:
        """Number of this rank's share."""
        return self.global_rank // self._ranks_of_a_share

    @property
    def _ranks_of_a_share(self) -> int:
        # Colossal-AI takes the ranks of a layer for those of a sequence too in these modes,
        # whatever sp_size is.
        joint = self.options.sequence_parallelism_mode in refusals.MODES_WITHIN_A_LAYER
        return (self.options.tp_size or 1) * (1 if joint else self.options.sp_size or 1)

    @property
    def _takes_apart(self) -> bool:
        """True if the plugin itself takes a model to the device: in parts, so that it may be larger
        than that.
        """
        return self.plugin in ("gemini", "hybrid_parallel")

    def configure_precision(self, name: str) -> Precision | None:
        """The formats that Colossal-AI converts to; core's own with `torch_ddp`, which leaves that
        to others.

        Raises:
            ConfigurationError: the plugin doesn't have it.
        """
        return super().configure_precision(name) if self.replicates else precision.choose(name)

    def configure_checkpoint_io(self) -> CheckpointIO | None:
        """The core's, or with `colossalai_checkpoint="native"` Colossal-AI's own layout."""
        return native.BoosterCheckpointIO(self) if self._is_native else None

    def check(self) -> None:
        """Refuse what contradicts the options or needs other devices, and a machine without
        Colossal-AI.

        Raises:
            ConfigurationError: with what fits.
            PluginLoadError: Colossal-AI isn't installed, is another release, or can't be imported;
                with the recipe.
        """
        super().check()
        device_type = self.parallel_devices[0].type
        self.check_device(device_type)
        refusals.refuse_eight_bits(self.options, device_type)
        refusals.refuse_sizes(self.plugin, self.options, self.world_size)
        refusals.refuse_precision(self.plugin, self.options, self.precision_plugin.name)
        if self._is_native and not isinstance(self.checkpoint_io, native.BoosterCheckpointIO):
            raise ConfigurationError(
                "colossalai_checkpoint='native' lets Colossal-AI's Booster write the checkpoints, "
                f"and {type(self.checkpoint_io).__name__} was given to write them. Leave one of "
                "the two out."
            )
        library.plugin_class(self.plugin)

    def check_device(self, device_type: str) -> None:
        """Main process. Refuse a kind of device that Colossal-AI doesn't run the plugin on.

        Raises:
            ConfigurationError: it needs GPUs.
        """
        refusals.refuse_device(self.plugin, device_type)

    def own_booster(self) -> Any:
        """All ranks, in the process group. The Booster that has set up what is cut, or one with the
        same plugin.
        """
        return self._make_booster() if self.engine is None else self.engine.booster

    def _make_booster(self, **more: Any) -> Any:
        return library.booster(self.plugin, {**self.options.given(), **more}, self.root_device.type)

    # modules and optimizers -----------------------------------------------------------------------

    def setup(self, trainer: SetupHost) -> None:
        """All ranks. Set up as every strategy does; what clips, and what runs a step, must be one.

        Raises:
            ConfigurationError: gradients are to be clipped twice, or a step is to run where a
                forward is all.
        """
        if trainer.clipping is not None and self.options.max_norm:
            raise ConfigurationError(
                f"max_norm={self.options.max_norm} and gradient_clip_val={trainer.clipping.value} "
                "clip both. Leave one of them out."
            )
        if trainer.clipping is not None and self.plugin == "gemini":
            raise ConfigurationError(
                f"gradient_clip_val={trainer.clipping.value}: Gemini clips inside its own step. "
                "Pass max_norm=... to the strategy, and leave gradient_clip_val out."
            )
        if self.calls_forward:
            with_layers = (
                "" if self.plugin == "hybrid_parallel" else f" with tp_size={self.options.tp_size}"
            )
            raise ConfigurationError(
                f"plugin={self.plugin!r}{with_layers} calls a model's forward, since Shardformer "
                "looks at its class: train it with Fabric, model, optimizer = fabric.setup(model, "
                "optimizer), and not with a Trainer."
            )
        super().setup(trainer)

    @contextmanager
    def init_context(self, *, empty: bool = False) -> Iterator[None]:
        """All ranks. A context in which a model is built: for Gemini and hybrid by Colossal-AI's
        LazyInitContext.

        Those then give memory and values to one parameter after the other, as they cut them, so
        that the whole model is never on a GPU.
        """
        lazy = library.load("colossalai.lazy").LazyInitContext() if self._takes_apart else None
        with lazy or super().init_context(empty=empty):
            yield

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. A module with `torch_ddp`, or one that isn't trained; all ranks have the
        weights of rank 0.

        Raises:
            ModuleError: the ranks have built different modules.
        """
        if self.replicates:
            refusals.refuse_normalization(module, self.root_device.type)
            return super().setup_module(module)
        refuse_unlike_modules(self, module)
        self.model = super(DDPStrategy, self).setup_module(module)
        self._share([*module.parameters(), *module.buffers()])
        return self.model

    def configure_ddp(self) -> None:
        """All ranks. Wrap `self.model`, and what steps it, by the Booster in torch's
        DistributedDataParallel.
        """
        manual = not getattr(self.model, "automatic_optimization", True)
        find_unused = manual if self.find_unused_parameters is None else self.find_unused_parameters
        first = next(iter(self._to_boost), None)
        others = self._to_boost[1:]
        booster = self._make_booster(find_unused_parameters=find_unused)
        boosted, wrapper = library.boost(booster, self.model, first)
        wrappers = library.load("colossalai.interface").OptimizerWrapper
        self.boosted.append((boosted, [] if first is None else [wrapper, *map(wrappers, others)]))
        self.model = boosted.module  # torch's wrapper, which is all that Colossal-AI's calls

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Give everything to the Booster; the core steps the scheduler.

        Raises:
            ConfigurationError: a module or an optimizer that Colossal-AI would train wrongly.
        """
        if self.replicates or not optimizers:
            self._to_boost = optimizers
            try:
                return self.setup_module(module), optimizers, scheduler
            finally:
                self._to_boost = []
        self.engine = engine = self._make_engine(module, optimizers[0])
        self.model = engine.wrapped
        return self.model, [engine.optimizer], scheduler

    def _make_engine(self, module: nn.Module, optimizer: Optimizer) -> Engine:
        if self.session.handles:
            raise UnsupportedError(
                f"plugin={self.plugin!r} can set up one module. Put both into one nn.Module.",
                capability=Capability.SEVERAL_MODULES,
            )
        if self.plugin == "gemini":
            refusals.refuse_gemini_optimizer(optimizer, library.gemini_optimizers())
        if self.calls_forward and self.options.custom_policy is None:
            refusals.refuse_unknown_model(
                module, library.load("colossalai.shardformer.policies.auto_policy")
            )
        refusals.refuse_cut(module, optimizer)
        refuse_unlike_modules(self, module)
        if not self._takes_apart:
            self.module_to_device(module)
        lazy = library.load("colossalai.lazy").LazyTensor
        tensors = [*module.parameters(), *module.buffers()]
        self._share([one for one in tensors if not isinstance(one, lazy)])
        self._cut.watch(module.named_parameters())
        booster = self._make_booster(**self._settings())
        with self._same_draws():  # by which lazy parameters get the same values on all ranks
            return self._boosted(booster, module, optimizer)

    def _boosted(self, booster: Any, module: nn.Module, optimizer: Optimizer) -> Engine:
        if self.plugin == "low_level_zero":
            left_out = LeftOutParameters(self) if self.world_size > 1 else None
            return LowLevelZeroEngine(booster, module, optimizer, left_out)
        return (ForwardEngine if self.calls_forward else Engine)(booster, module, optimizer)

    @contextmanager
    def _same_draws(self) -> Iterator[None]:
        seed = self.broadcast(int(torch.randint(2**62, ())))
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)
            yield

    def _settings(self) -> dict[str, Any]:
        """The settings that a plugin needs besides the options: the format, and sizes that it has
        no defaults for.
        """
        names = {core: theirs for theirs, core in precision.NAMES.items()}
        settings: dict[str, Any] = {"precision": names[self.precision_plugin.name]}
        if self.plugin == "hybrid_parallel":
            settings |= {"tp_size": self.options.tp_size or 1, "pp_size": 1}
            if (
                self.options.enable_sequence_parallelism
                and self.options.sequence_parallelism_mode is None
            ):
                # Left out it is this one to the plugin, which counts ranks, and another one to its
                # ShardConfig.
                settings["sequence_parallelism_mode"] = "all_to_all"
        return settings

    def refresh_modules(self) -> bool:
        """All ranks, when an epoch of the Trainer begins; see `DDPStrategy.refresh_modules`.

        Raises:
            ConfigurationError: a parameter was unfrozen that has no place in what was cut.
        """
        if unfrozen := self._cut.unfrozen():
            name = next(iter(unfrozen.values()))
            raise ConfigurationError(
                f"The parameter {name!r} was frozen when it was set up: {_STAYS_FROZEN}"
            )
        return super().refresh_modules()

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget what was set up; if ranks end alone, a module may stay in
        16 bits' values.
        """
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close(is_whole=self.session.ends_together)
        self.boosted = []
        self._cut.forget()
        self._buffers_differ = False
        super().release()
