"""The user's objects, set up for the strategy: modules, optimizers, loaders, and tensors on the
device.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from core.contract import Capability, ConfigurationError, ModuleError, UnsupportedError
from core.contract.precision import join_contexts
from core.data import to_device
from core.fabric.compilation import make_compilers, split_compiled
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer
from core.fabric.processes import Processes
from core.fabric.state import EmptyWeights, unwrap_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from core.contract import Strategy
    from core.contract.step import Stage
    from core.fabric.loader import LoaderSetup
    from core.session import Session
    from core.watch import WatchdogOptions


class Setup(Processes):
    """The part of Fabric that sets up what the user has made. Not meant to be used by itself."""

    def __init__(
        self,
        session: Session,
        watch: bool | WatchdogOptions | None,
        compile: bool | Mapping[str, Any],
        activation_checkpointing: Any,
        activation_offload: bool,
    ) -> None:
        super().__init__(session, watch)
        self.compiler, self.unit_compiler = make_compilers(compile, self.strategy)
        session.activations = None
        if activation_checkpointing not in (None, False) or activation_offload is not False:
            from core.activations import ActivationMemory  # most have none

            activations = ActivationMemory(activation_checkpointing, activation_offload)
            activations.check(self.strategy)
            session.activations = activations.apply
        self._target: nn.Module | None = None
        """The module whose loss `backward` gets by default: the only one that was set up."""

    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer,
        scheduler: object = None,
        move_to_device: bool = True,
    ) -> Any:
        """All ranks. Set up a module, and the optimizers of its parameters.

        Args:
            module: your model.
            optimizers: of its parameters.
            scheduler: of learning rates; for strategies whose engine steps it. Others hand it back
                as it is.
            move_to_device: every strategy brings the module to the device as it sets it up; False
                is refused.

        Returns:
            The module; with optimizers, a tuple of the module, the optimizers and, if it was given,
            the scheduler.

        Raises:
            ModuleError: `module` isn't a module, or was set up already.
            ConfigurationError: an optimizer isn't one, was set up already, or has no parameter of a
                module that was.
            UnsupportedError: the strategy can't set up several modules or optimizers.
        """
        check_module(module)
        check_optimizers(optimizers)
        if not move_to_device:
            raise ConfigurationError(
                "setup(move_to_device=False): a strategy brings the module to the device as it "
                "sets it up. Leave the argument out; keep a module that is to stay where it is out "
                "of setup."
            )
        if optimizers and Capability.COMPILED_STEP in self.strategy.capabilities:
            raise UnsupportedError(
                f"{type(self.strategy).__name__} runs forward, backward and update as one compiled "
                "program, so that there is no training in a loop of your own. Use core.Trainer, or "
                "another strategy.",
                capability=Capability.COMPILED_STEP,
            )
        check_trains(self.strategy, optimizers)
        self._set_up()
        self.draw_apart()
        module = self.uncompiled(module)
        wrapped, added, scheduler = self.session.add_module_and_optimizers(
            module, optimizers, scheduler
        )
        self._target = None
        if len(self.session.handles) == 1:
            self._target = wrapped
        model = FabricModule(module, wrapped, self)
        if not optimizers:
            return model
        refuse_lost(model, optimizers, self.strategy)
        stepped: list[Any] = [self.wrap_optimizer(optimizer) for optimizer in added]
        if scheduler is not None:
            stepped.append(scheduler)
        return (model, *stepped)

    def uncompiled(self, module: nn.Module) -> nn.Module:
        """The user's own module, before it is set up: of what `torch.compile` made, the module that
        it was made from.

        The methods of the next module that is set up are compiled as that one was, or else as
        `compile` says.

        Raises:
            ConfigurationError: it is compiled as a whole, and `compile` names a region.
        """
        own, compiler = split_compiled(module)
        if compiler is not None and self.unit_compiler is not None:
            raise ConfigurationError(
                f"torch.compile({type(own).__name__}) compiles the whole module, and "
                "compile={'region': ...} parts of it. Keep one of them."
            )
        self.session.compiler = compiler or self.compiler
        self.session.unit_compiler = self.unit_compiler
        return own

    def setup_module(self, module: nn.Module, move_to_device: bool = True) -> FabricModule:
        """All ranks. Set up a module without an optimizer, or before its optimizer is made; see
        `setup`.
        """
        model: FabricModule = self.setup(module, move_to_device=move_to_device)
        return model

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """All ranks. Set up optimizers of modules that were set up.

        Returns:
            The optimizer, or a tuple of several.

        Raises:
            UnsupportedError: the strategy sets up module and optimizer together.
            ConfigurationError: an optimizer isn't one, was set up already, or has no parameter of a
                module that was.
        """
        check_optimizers(optimizers)
        if Capability.JOINT_SETUP in self.strategy.capabilities:
            raise UnsupportedError(
                f"{type(self.strategy).__name__} sets up a module together with its optimizers: "
                "use model, optimizer = fabric.setup(model, optimizer).",
                capability=Capability.JOINT_SETUP,
            )
        check_trains(self.strategy, optimizers)
        self._set_up()
        added = self.session.add_optimizers(optimizers)
        stepped = tuple(self.wrap_optimizer(optimizer) for optimizer in added)
        return _one_or_all(stepped)

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        on_step: Callable[[int], None] | None = None,
        before_step: Callable[[Optimizer], None] | None = None,
    ) -> FabricOptimizer:
        """An optimizer whose `step` goes through the strategy, for one that the strategy has set
        up.

        Args:
            optimizer: one of `strategy.optimizers`.
            on_step: called after each step with the number of updates of parameters.
            before_step: called before each step, when gradients are there.
        """
        return FabricOptimizer(optimizer, self.strategy, on_step, before_step)

    def setup_dataloaders(
        self,
        *loaders: object,
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
        stage: Stage = "fit",
        global_batch_size: int | None = None,
    ) -> Any:
        """All ranks. Give each rank its shard of the data, in the order of your own samplers, on
        its device.

        Args:
            loaders: DataLoaders, or other iterables of batches, which can't be sharded.
            use_distributed_sampler: False leaves the samplers alone: each rank reads what its own
                loader yields.
            move_to_device: False leaves batches where they are.
            stage: with `"fit"` all ranks make the same number of steps; with the others no sample
                is counted twice.
            global_batch_size: samples of all ranks together in one optimizer step, whatever their
                number: the loader's `batch_size` is the most that a rank takes at once. Each loader
                then has `num_accumulated`, and, for the batch that it yielded last, `ends_window`
                and `loss_weight`.

        Returns:
            The loader, or a list of several.

        Raises:
            ConfigurationError: a loader can't be iterated over, was set up already, or can't be
                divided so.
        """
        self._set_up()
        set_up = [
            self._loader_setup.set_up(
                loader, use_distributed_sampler, move_to_device, stage, global_batch_size
            )
            for loader in loaders
        ]
        return _one_or_all(set_up)

    def init_module(self, empty_init: bool = False) -> AbstractContextManager[object]:
        """All ranks. A context in which a model is built on the rank's device, in the precision's
        format.

        Args:
            empty_init: weights will be loaded, so that no time is spent on first values: parameters
                hold whatever was in their memory, or have none yet with a strategy that shards
                them.
        """
        self._set_up()
        context = self.strategy.init_context(empty=empty_init)
        if empty_init:
            context = join_contexts(context, EmptyWeights())
        return context

    def init_tensor(self) -> AbstractContextManager[object]:
        """All ranks. A context in which tensors are made on the rank's device, in the precision's
        format.
        """
        self._set_up()
        return self.strategy.init_context()

    def to_device(self, data: object) -> Any:
        """All ranks. Bring a module, a tensor or nested data to the rank's device. Returns it."""
        self._set_up()
        if not isinstance(data, nn.Module):
            return to_device(data, self.device)
        self.strategy.module_to_device(unwrap_module(data))
        return data

    def _wrapped(self, module: nn.Module) -> nn.Module:
        """The strategy's wrapper of a module.

        Raises:
            ConfigurationError: it wasn't set up.
        """
        return self.session.handle_of(unwrap_module(module)).wrapped

    @cached_property
    def _loader_setup(self) -> LoaderSetup:
        from core.fabric.loader import LoaderSetup  # the Trainer has loaders and logs of its own

        return LoaderSetup(self.strategy)


def _one_or_all(made: Sequence[Any]) -> Any:
    if len(made) == 1:
        return made[0]
    return made


def check_state(call: str, path: object, state: object) -> None:
    """Refuse what isn't a path and a dict."""
    if isinstance(state, Mapping) and isinstance(path, str | os.PathLike):
        return
    given = f"{type(path).__name__}, {type(state).__name__}"
    raise ConfigurationError(
        f"fabric.{call}({given}): expected a path first, and then a dict of what it holds, as in "
        f"fabric.{call}('last.ckpt', {{'model': model, 'optimizer': optimizer}})."
    )


def check_module(module: object) -> None:
    """Refuse what isn't a module of the user's own."""
    if isinstance(module, FabricModule):
        raise ModuleError(
            f"setup: this {type(module.module).__name__} was set up already. "
            "Pass the module that you made, and once only."
        )
    if not isinstance(module, nn.Module):
        raise ModuleError(f"setup: expected an nn.Module first, got {type(module).__name__}.")


def check_trains(strategy: Strategy, optimizers: Sequence[object]) -> None:
    """Refuse optimizers where the precision only evaluates."""
    if optimizers and not strategy.precision_plugin.trains:
        raise ConfigurationError(
            f"precision={strategy.precision_plugin.name!r} evaluates and predicts, and can't "
            "train. Set the module up without optimizers, or use another precision."
        )


def check_optimizers(optimizers: Sequence[object]) -> None:
    """Refuse what isn't an optimizer of the user's own."""
    for optimizer in optimizers:
        if isinstance(optimizer, FabricOptimizer):
            raise ConfigurationError(
                f"This {type(optimizer.optimizer).__name__} was set up already. "
                "Pass the optimizer that you made, and once only."
            )
        if not isinstance(optimizer, Optimizer):
            raise ConfigurationError(
                f"Expected a torch.optim.Optimizer, got {type(optimizer).__name__}. Pass each "
                "optimizer as an argument of its own: fabric.setup(model, optimizer_1, "
                "optimizer_2); a scheduler as scheduler=..."
            )


def refuse_lost(model: FabricModule, optimizers: Sequence[Optimizer], strategy: Strategy) -> None:
    """Make it an error, in the first step, that nobody has kept the module that `setup` returned.

    Whoever has can call it in any way, or none. Where the strategy or precision changes no call,
    nothing is lost.
    """
    is_bare = strategy.forward_context() is None and not strategy.precision_plugin.converts_input
    if model.wrapped is model.module and is_bare:
        return
    kept, taken, own = weakref.ref(model), model.taken, weakref.ref(model.module)

    def check(*_: object) -> None:
        for hook in hooks:
            hook.remove()
        is_set_up = any(handle.module is own() for handle in strategy.session.handles)
        if is_set_up and kept() is None and not taken:
            raise ModuleError(
                f"Nothing has kept what fabric.setup returned: the {type(own()).__name__} that you "
                f"made is trained without {type(strategy).__name__} and "
                f"precision={strategy.precision_plugin.name!r}. Write model, optimizer = "
                "fabric.setup(model, optimizer), call model(...) and step that optimizer."
            )

    hooks = [optimizer.register_step_pre_hook(check) for optimizer in optimizers]
