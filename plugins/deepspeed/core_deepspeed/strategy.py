"""DeepSpeed's engine behind one word: ZeRO cuts optimizer state, gradients and parameters over the
ranks.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020;
Ren et al., "ZeRO-Offload", ATC 2021; Rajbhandari et al., "ZeRO-Infinity", SC 2021.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core import Capability, ConfigurationError, Strategy
from core.precision import kept_in_float32
from core.strategies import (
    LeftOutParameters,
    ParallelStrategy,
    refuse_unlike_modules,
    with_options_of,
)
from core_deepspeed import config as configs
from core_deepspeed import library, native, ops, refusals, sections
from core_deepspeed import optimizers as stepping
from core_deepspeed.engine import ZeroEngine
from core_deepspeed.engine_steps import EngineSteps
from core_deepspeed.initial_values import same_on_all_ranks
from core_deepspeed.left_out import GradientsOfAll
from core_deepspeed.options import DeepSpeedOptions, split
from core_deepspeed.precision import ENGINE_SCALED
from core_deepspeed.whole_engine import WholeEngine

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from core import CheckpointIO, Precision, SetupHost, Stage

_log = logging.getLogger(__name__)


class DeepSpeedStrategy(EngineSteps):
    """Sharded data parallelism with DeepSpeed's ZeRO, on one node or several."""

    @with_options_of(DeepSpeedOptions, ParallelStrategy.__init__, Strategy.__init__, closed=True)
    def __init__(self, stage: int | None = None, **options: Any) -> None:
        """Options of DeepSpeed, and of every parallel strategy.

        Args:
            stage: of ZeRO. 0 cuts nothing over the ranks, 1 the optimizer's state, 2 gradients too,
                3 parameters too. None: what `config` says, where saying nothing means 0; without a
                `config` 2.
            options: of `core_deepspeed.DeepSpeedOptions`, and of `ParallelStrategy`
                (`start_method`, `process_group_backend`, `timeout`, `parallel_devices`, ...).

        Raises:
            ConfigurationError: an unknown option, or options that contradict each other.
        """
        own, parts = split(options)
        super().__init__(**parts)
        if stage is not None:
            own["stage"] = stage
        self.options = DeepSpeedOptions(**own)
        self._config = configs.merge(self.options, own.keys())
        self._sections = sections.take(self._config)
        if any(self._config.get("activation_checkpointing", {}).values()):
            self.own_activation_option = "the section activation_checkpointing"
        self._made: list[Any] = []
        self.engines: list[ZeroEngine] = []
        self._local_rank = library.LocalRank()
        self._run_arguments: dict[str, Any] = {}

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """Set-up of everything at once, clipping inside the step, state in shards; one optimizer a
        module.

        No inference mode at stage 3: parameters that are gathered in evaluation may be kept for
        training. Optimizers are made if `config` has a section `optimizer`, so that a module may
        leave out `configure_optimizers`.
        """
        own = super().capabilities & ~(
            Capability.SEVERAL_OPTIMIZERS | Capability.CLIP_BY_VALUE | Capability.BIT_EXACT_RESUME
        )
        own |= (
            Capability.JOINT_SETUP
            | Capability.OWNS_CLIPPING
            | Capability.OWNS_GRADIENTS
            | Capability.SHARDED_STATE
        )
        if "optimizer" in self._sections:
            own |= Capability.MAKES_OPTIMIZERS
        if self.stage == 3:
            own &= ~Capability.INFERENCE_MODE
        return own | Capability.NO_SYNC if self.stage < 2 else own

    def replicas_of(
        self, tensor: Tensor | None = None, name: str = "", module: nn.Module | None = None
    ) -> Hashable:
        """All ranks. All have alike what the stage doesn't cut."""
        return None if self.stage == 3 and isinstance(tensor, nn.Parameter) else ()

    def configure_precision(self, name: str) -> Precision | None:
        """`16-mixed` and `16-true` are the engine's: it scales the loss."""
        return ENGINE_SCALED[name]() if name in ENGINE_SCALED else None

    def configure_checkpoint_io(self) -> CheckpointIO | None:
        """The core's, or with `deepspeed_checkpoint="native"` DeepSpeed's own layout."""
        return native.EngineCheckpointIO(self) if self._is_native else None

    def check(self) -> None:
        """Refuse what contradicts the options, and a machine where DeepSpeed or a part of it is
        missing.

        Raises:
            ConfigurationError: with what fits, or what to install.
            PluginLoadError: DeepSpeed isn't installed, or can't be imported.
        """
        super().check()
        if self._is_native and not isinstance(self.checkpoint_io, native.EngineCheckpointIO):
            raise ConfigurationError(
                "deepspeed_checkpoint='native' lets DeepSpeed's engine write the checkpoints, and "
                f"{type(self.checkpoint_io).__name__} was given to write them too. Leave out one "
                "of the two."
            )
        config = self._fitted_config()
        library.load(self.parallel_devices[0].type)
        library.check_config(config)
        library.check_precision(self.precision_plugin.name)
        sections.check(self._sections)
        ops.prepare(config)

    def configure_deepspeed_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """All ranks, for each module. The config that DeepSpeed gets. Override to change it."""
        return config

    def _fitted_config(self) -> dict[str, Any]:
        run = configs.RunArguments(
            world_size=self.world_size,
            device_type=self.parallel_devices[0].type,
            precision=self.precision_plugin.name,
            **self._run_arguments,
        )
        return configs.fit_to_run(self._config, run)

    def _engine_config(self) -> dict[str, Any]:
        """The config of one engine, in which the core counts accumulated batches."""
        config = self._fitted_config()
        if (
            number := config["gradient_accumulation_steps"]
        ) > 1 and "num_accumulated" not in self._run_arguments:
            raise ConfigurationError(
                f"config says gradient_accumulation_steps = {number}, and your own loop decides "
                "when the optimizer steps. Leave it out; divide the loss, and use "
                "fabric.no_backward_sync(model) for all batches but the last."
            )
        if self.stage == 1:
            # begins before it is known where a window ends
            config["zero_optimization"]["overlap_comm"] = False
        # The engine is given the end of a window, so for DeepSpeed each is one batch long. Its
        # total batch size would contradict that, and follows from the other two numbers.
        config = self.configure_deepspeed_config({**config, "gradient_accumulation_steps": 1})
        config.pop("train_batch_size", None)
        return config

    # module and optimizer -------------------------------------------------------------------------

    def setup(self, trainer: SetupHost) -> None:
        """All ranks. Set up as every strategy does; the Trainer's arguments and the config must
        agree.
        """
        clipping = trainer.clipping
        self._run_arguments = {
            "num_accumulated": trainer.accumulate_grad_batches,
            "max_norm": clipping.value if clipping is not None else None,
        }
        self._knows_windows = getattr(trainer.module, "automatic_optimization", True)
        super().setup(trainer)

    def configure_optimizers(self, module: Any) -> Any:
        """All ranks. The module's optimizers and schedulers, or those of the config.

        Raises:
            ConfigurationError: both give a scheduler.
        """
        made = (
            self.make_optimizer(module)
            if "optimizer" in self._sections
            else module.configure_optimizers()
        )
        if "scheduler" not in self._sections:
            return made
        optimizer = stepping.only_one(made)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.make_scheduler(optimizer), "interval": "step"},
        }

    def make_optimizer(self, module: nn.Module) -> Optimizer:
        """All ranks. The optimizer of the config, for loops by hand, to be given to `fabric.setup`.

        Raises:
            ConfigurationError: the config has no section `optimizer`.
        """
        optimizer = sections.make_optimizer(self._section("optimizer"), module.parameters())
        self._made.append(optimizer)
        return optimizer

    def make_scheduler(self, optimizer: Optimizer) -> Any:
        """All ranks. The scheduler of the config, for loops by hand, to be stepped after each step
        of the optimizer.

        Args:
            optimizer: before it goes to `fabric.setup`.

        Raises:
            ConfigurationError: the config has no section `scheduler`.
        """
        scheduler = sections.make_scheduler(self._section("scheduler"), optimizer)
        self._made.append(scheduler)
        return scheduler

    def _section(self, name: str) -> sections.Section:
        if name not in self._sections:
            raise ConfigurationError(
                f"make_{name}: config has no section {name!r}. Add one, or make yours by hand."
            )
        return self._sections[name]

    def _check_made(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer of the user's own loop that knows nothing of what the config asks
        for.
        """
        made = {
            "optimizer": self._made,
            "scheduler": [getattr(one, "optimizer", None) for one in self._made],
        }
        for name in self._sections:
            if not any(one is optimizer for one in made[name]):
                raise ConfigurationError(
                    f"config has a section {name!r}, and fabric.setup got a "
                    f"{type(optimizer).__name__} that knows nothing of it. Leave the section out, "
                    f"or take what it names: {name} = fabric.strategy.make_{name}"
                    f"({'model' if name == 'optimizer' else 'optimizer'}) before fabric.setup."
                )

    def init_context(self, *, empty: bool = False) -> AbstractContextManager[Any]:
        """All ranks. A context in which a model is built; at stage 3 each parameter is cut as soon
        as it is there.
        """
        # Without `empty`: parameters that are cut one by one never need the memory that it would
        # save.
        return (
            super().init_context(empty=empty)
            if self.stage < 3
            else self._cutting(super().init_context())
        )

    @contextmanager
    def _cutting(self, context: AbstractContextManager[Any]) -> Iterator[None]:
        deepspeed = self._connect()
        config = self._engine_config()
        cut = deepspeed.zero.Init(
            config_dict_or_path=config,
            remote_device=self.options.remote_device,
            pin_memory=self.options.pin_memory,
        )
        # Parameters get the engine's format when they are cut; buffers such as frequencies are
        # computed in their own.
        cut.tensor_overrides = [each for each in cut.tensor_overrides if each.name != "dtype"]
        cut_one = cut._zero_init_param

        def convert_and_cut(parameter: Tensor) -> None:
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(cut.dtype)
            cut_one(parameter)

        cut._zero_init_param = convert_and_cut
        with context, cut:
            yield

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. A module for inference; at stage 3 its parameters are cut, below they are
        whole.
        """
        super().setup_module(module)
        if self.stage == 3:
            config = self._inference_config(module)
            self._to_one_format(module, config)
            self.model = self._start_engine(module, None, config).wrapped
        return self.model

    def _inference_config(self, module: nn.Module) -> dict[str, Any]:
        """The engine's configuration for a module without an optimizer, which has no masters of
        what is in 16 bits.

        Under mixed precision its weights stay as they are, and autocast computes: the engine would
        round them, and the user's module and its checkpoints with them. One that was built in parts
        is in 16 bits already.
        """
        config = self._engine_config()
        if not self.precision_plugin.name.endswith("-mixed") or any(
            hasattr(own, "ds_id") for own in module.parameters()
        ):
            return config
        return {**config, "fp16": {"enabled": False}, "bf16": {"enabled": False}}

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """All ranks. Wrap everything in DeepSpeed's engine; the core steps the scheduler.

        Raises:
            ConfigurationError: an optimizer that ZeRO can't step, or parameters that it doesn't
                know.
        """
        if not optimizers:
            return self.setup_module(module), [], scheduler
        module = self.precision_plugin.convert_module(module)
        self._to_one_format(module, self._engine_config())
        stepping.check(optimizers[0], module, self.stage)
        self._check_made(optimizers[0])
        self.module_to_device(module)
        engine = self._start_engine(module, optimizers[0], self._engine_config())
        assert engine.optimizer is not None, "it was given one"
        return engine.wrapped, [engine.optimizer], scheduler

    def _start_engine(
        self, module: nn.Module, optimizer: Optimizer | None, config: dict[str, Any]
    ) -> ZeroEngine:
        deepspeed = self._connect()
        refusals.refuse_modules(module, config)
        refuse_unlike_modules(self, module)
        kept = {id(one) for one in kept_in_float32(module, _half_format(config)).values()}
        held = [
            (part._buffers, *each) for part in module.modules() for each in part._buffers.items()
        ]
        with ops.telling(ops.left_to_compile(config) if self.local_rank == 0 else []):
            if optimizer is not None:
                optimizer = stepping.choose(deepspeed, optimizer, config)
            with same_on_all_ranks(module, self.broadcast):
                if self.stage == 0 and optimizer is not None:
                    engine: ZeroEngine = WholeEngine(deepspeed, module, optimizer, config)
                else:
                    engine = ZeroEngine(deepspeed, module, optimizer, config)
        for buffers, name, buffer in held:
            if id(buffer) in kept:
                buffers[name] = buffer  # the engine has converted it
        named = {one: name for name, one in module.named_parameters() if one in engine.group_of}
        # At stage 0 in float32 the user's own optimizer steps, and passes over what has no
        # gradient.
        if engine.zero is not engine.optimizer:
            engine.stepped = named
        if self.stage > 0 and self.world_size > 1:
            engine.gradients = GradientsOfAll(
                named, engine.zero, self.stage, LeftOutParameters(self)
            )
        self.engines.append(engine)
        return engine

    def _to_one_format(self, module: nn.Module, config: dict[str, Any]) -> None:
        """Convert parameters that the module keeps in float32: an engine of 16 bits takes no
        others. A line says so.
        """
        dtype = _half_format(config)
        kept = {
            name: one
            for name, one in kept_in_float32(module, dtype).items()
            if isinstance(one, nn.Parameter)
        }
        if dtype is None or not kept:
            return
        for one in kept.values():
            one.data = one.data.to(dtype)
        if self.is_global_zero:
            _log.warning(
                "%s keeps parameters in float32 (%s), and DeepSpeed's engine computes with all of "
                "them in %s. strategy='fsdp' and 'ddp' keep them.",
                type(module).__name__,
                ", ".join(list(kept)[:4]),
                str(dtype).removeprefix("torch."),
            )

    def _connect(self) -> Any:
        self._local_rank.set(self.local_rank)
        return library.connect(
            self.root_device.type, self.process_group_backend, self.options.logging_level
        )

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """All ranks. The loader as it is; its batch size and the config must agree."""
        if stage == "fit" and isinstance(size := getattr(loader, "batch_size", None), int):
            self._run_arguments["micro_batch_size"] = size
            self._fitted_config()
        return super().setup_dataloader(loader, stage)

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """All ranks; idempotent. Forget the engines; modules get whole parameters back, where ranks
        end together.
        """
        for engine in self.engines:
            values = self._whole_parameters(engine) if self.session.ends_together else {}
            engine.close(values)
        if self.engines and self.stage == 3:
            library.forget_modules()
        self.engines = []
        self._made = []
        self._run_arguments = {}
        self._knows_windows = False
        self._local_rank.restore()
        super().release()

    def leave_group(self) -> None:
        """All ranks; idempotent. Leave the group, if it was made here, and those that DeepSpeed
        made.
        """
        if self._owns_group and library.is_loaded():
            library.disconnect()
            self._owns_group = False
            gc.collect()
        super().leave_group()


def _half_format(config: dict[str, Any]) -> torch.dtype | None:
    """The format of 16 bits into which an engine of this configuration converts a module; None if
    it doesn't.
    """
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return next(
        (dtype for block, dtype in formats.items() if config.get(block, {}).get("enabled")), None
    )
