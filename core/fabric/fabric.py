"""Your own training loop, on any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from core.contract import (
    Capability,
    ConfigurationError,
    GradientClipping,
    NotYetChosenError,
    UnsupportedError,
)
from core.contract.precision import join_contexts
from core.data import to_device
from core.display import install_for
from core.fabric.checks import (
    check_module,
    check_optimizers,
    check_state,
    check_trains,
    refuse_lost,
)
from core.fabric.compilation import make_compilers, split_compiled
from core.fabric.empty_weights import EmptyWeights
from core.fabric.module import FabricModule
from core.fabric.one_step import refuse_non_finite, run_step
from core.fabric.optimizer import FabricOptimizer
from core.fabric.processes import Processes
from core.fabric.state import copy_values, filter_modules, holds_objects, unwrap, unwrap_module
from core.lazy_exports import import_home
from core.registry import LOGGER_REGISTRY
from core.resolve import resolve
from core.session.nested import refuse_endless
from core.watch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import torch

    from core.contract import Accelerator, Logger, Precision, Strategy
    from core.contract.accelerator import Devices
    from core.contract.checkpoint_io import PathLike
    from core.contract.step import Stage
    from core.fabric.loader import LoaderSetup
    from core.fabric.metric_log import MetricLog
    from core.resolve import Resolution
    from core.watch import WatchdogOptions
    from core_weights import WeightStream


class Fabric(Processes):
    """Brings a loop that you write yourself to any device and any strategy.

        fabric = Fabric(strategy="ddp", devices=2)
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(loader)

        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()

    After `launch` every line runs on every rank. With one process, or when a scheduler or torchrun
    has made the processes, `launch` may be left out.
    """

    def __init__(
        self,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: Devices = "auto",
        num_nodes: int | Literal["auto"] = 1,
        precision: str | int | Precision | None = None,
        plugins: Any | Sequence[Any] | None = None,
        callbacks: Any | Sequence[Any] | None = None,
        loggers: str | Logger | Sequence[str | Logger] | None = None,
        compile: bool | Mapping[str, Any] = False,
        activation_checkpointing: Any = None,
        activation_offload: bool = False,
        watch: bool | WatchdogOptions | None = None,
        terminate_on_nan: bool = False,
    ) -> None:
        """Decide what is left open. No device is touched, and no process is made.

        Args:
            accelerator: `"cpu"`, `"gpu"`, any registered name, an instance; `"auto"` takes the best
                one that is here.
            strategy: any registered name (`core list-strategies`), an instance, or `"auto"`.
            devices: on each node how many (`2`), which (`[1, 3]`, `"1,3"`), all (`-1`), or
                `"auto"`: every GPU, one process on a CPU.
            num_nodes: number of machines; `"auto"` takes those that a scheduler or torchrun has
                started on.
            precision: `"bf16-mixed"`, `16`, any registered name, an instance; None is float32.
            plugins: instances or names of Precision, CheckpointIO, ClusterEnvironment and Launcher.
            callbacks: objects whose methods `fabric.call` calls by name.
            loggers: instances or registered names, for `fabric.log`.
            compile: whether modules that are set up run through `torch.compile`, or a dict of its
                options. With `"region": "units"` among them each repeated block is compiled by
                itself, once for all that are alike (`core.strategies.find_units`); a list of layer
                classes, or of names of classes or modules, says which. A module that you have
                compiled before, by `torch.compile(module)`, is compiled in the same way again,
                inside of the strategy's wrapper.
            activation_checkpointing: compute activations of the model's units again in backward,
                rather than keep them: `"units"` for its repeated blocks; a list of layer classes,
                or of names; a selective policy of torch's, a function or a list of operations; or
                `{"units": ..., "policy": ...}`. Values don't change.
            activation_offload: let what the units keep for backward wait in the memory of the CPU.
            watch: detect ranks that hang, report which one, where and how, and end the run with a
                `HangError` if that lasts: a `WatchdogOptions` with limits of your own, False for
                none. None is True.
            terminate_on_nan: look at each loss that `backward` gets, and end the run by a
                `NonFiniteLossError` before gradients come of one that is NaN or infinite. Waits for
                the device each time.

        Raises:
            ConfigurationError: what was asked, why it can't be, and the nearest that can.
        """
        install_for(self)
        self.resolution: Resolution = resolve(
            strategy=strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            plugins=_as_list(plugins),
        )
        super().__init__(self.resolution.session, watch)
        self.callbacks: list[Any] = _as_list(callbacks)
        self.loggers: list[Logger] = [
            LOGGER_REGISTRY.create(logger) if isinstance(logger, str) else logger
            for logger in _as_list(loggers)
        ]
        if len(self.loggers) > 1:
            from core.loggers.run_folder import refuse_shared_folders  # most have one

            refuse_shared_folders(self.loggers)
        self.compiler, self.unit_compiler = make_compilers(compile, self.strategy)
        self.session.activations = self._make_activations(
            activation_checkpointing, activation_offload
        )
        self._ends_by_non_finite_loss = terminate_on_nan
        self._target: nn.Module | None = None
        """The module whose loss `backward` gets by default: the only one that was set up."""

    def _make_activations(
        self, checkpointing: object, offload: bool
    ) -> Callable[[nn.Module, str], Callable[[], None]] | None:
        if checkpointing in (None, False) and offload is False:
            return None
        from core.activations import ActivationMemory  # most have none

        activations = ActivationMemory(checkpointing, offload)
        activations.check(self.strategy)
        return activations.apply

    @property
    def logger(self) -> Logger:
        """The first logger.

        Raises:
            NotYetChosenError: there is none.
        """
        if not self.loggers:
            raise NotYetChosenError(
                "This Fabric has no logger. Pass one, as in Fabric(loggers='csv')."
            )
        return self.loggers[0]

    # setup ----------------------------------------------------------------------------------------

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
        self._target = wrapped if len(self.session.handles) == 1 else None
        model = FabricModule(module, wrapped, self)
        if not optimizers:
            return model
        refuse_lost(model, optimizers, self.strategy)
        stepped = [self.wrap_optimizer(optimizer) for optimizer in added]
        return (model, *stepped) if scheduler is None else (model, *stepped, scheduler)

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
            from core.fabric.compile_options import refuse_both

            refuse_both(own)
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
        stepped = tuple(
            self.wrap_optimizer(optimizer) for optimizer in self.session.add_optimizers(optimizers)
        )
        return stepped[0] if len(stepped) == 1 else stepped

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
        return set_up[0] if len(set_up) == 1 else set_up

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
        return join_contexts(context, EmptyWeights()) if empty_init else context

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

    # steps ----------------------------------------------------------------------------------------

    def backward(
        self,
        tensor: Tensor,
        gradient: Tensor | None = None,
        *,
        model: nn.Module | None = None,
        weight: float | Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """All ranks. Compute gradients; used in place of `tensor.backward()`.

        Args:
            tensor: the loss, a scalar; or a tensor of another shape, with `gradient`.
            gradient: of the same shape as `tensor`, as `Tensor.backward` takes it; None for a
                scalar.
            model: whose loss it is; needed where several modules were set up, with strategies whose
                engine asks.
            weight: number of items that the loss is a mean over, at least 0. The gradient of the
                optimizer's next step is then that of the mean over all items, of all backwards
                since its last step, and of all ranks; don't divide by their number. Give one with
                each loss, or with none.
            kwargs: of `Tensor.backward`, such as `retain_graph`.

        Raises:
            ModuleError: the weight can't be one, or some losses have one and others don't.
            UnsupportedError: the strategy can't weigh losses.
            NonFiniteLossError: the loss is NaN or infinite, and `Fabric(terminate_on_nan=True)` was
                asked for.
        """
        if self._ends_by_non_finite_loss and weight != 0:
            refuse_non_finite(tensor, self.strategy)
        target = self._target if model is None else self._wrapped(model)
        if gradient is not None:
            kwargs["gradient"] = gradient
        if weight is None and self.session.weights is None:
            self.strategy.backward(tensor, target, **kwargs)
        else:
            self.session.backward(
                tensor, weight, lambda loss: self.strategy.backward(loss, target, **kwargs)
            )

    def step(self, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Any]) -> Tensor:
        """All ranks. Compute the loss of a batch and its gradients: the same line under every
        strategy.

        It is `loss_fn(model, batch)` and `backward`, except where a strategy cuts the batch, as a
        pipeline's schedule.

        Args:
            model: that `setup` returned.
            batch: on the device.
            loss_fn: `(model, batch) -> loss`, a scalar; or a dict with it under `"loss"`, and under
                `"weight"` what `backward` takes. It may run more than once.

        Returns:
            The loss, detached, on all ranks.

        Raises:
            ModuleError: `loss_fn` returned something else.
        """
        return run_step(self, model, batch, loss_fn)

    def clip_gradients(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor | None:
        """All ranks. Clip gradients, after the last backward and before the optimizer's step.

        Args:
            module: whose gradients.
            optimizer: of its parameters.
            clip_val: the largest absolute value of a gradient. Either this or `max_norm`.
            max_norm: the largest norm of all gradients together.
            norm_type: p of the p-norm.
            error_if_nonfinite: raise a RuntimeError if the norm isn't finite. Off, since gradients
                that overflow in 16-bit precision are expected, and that step is skipped.

        Returns:
            The norm before clipping, a scalar tensor; None with `clip_val`.

        Raises:
            ConfigurationError: both limits, or none.
            UnsupportedError: the strategy can't clip by value.
        """
        if (clip_val is None) == (max_norm is None):
            raise ConfigurationError(
                f"clip_gradients: clip_val={clip_val} and max_norm={max_norm}; pass one of the "
                "two, clip_val for the largest absolute value or max_norm for the largest norm."
            )
        if clip_val is not None:
            clipping = GradientClipping(clip_val, "value")
        else:
            assert max_norm is not None
            clipping = GradientClipping(max_norm, "norm", norm_type, error_if_nonfinite)
        if self.session.weights is not None:
            self.session.weights.correct(unwrap(optimizer))
        return self.strategy.clip_gradients(self._wrapped(module), unwrap(optimizer), clipping)

    def autocast(self) -> AbstractContextManager[object]:
        """All ranks. The context in which modules run, for computations outside of them."""
        return self.strategy.forward_context() or nullcontext()

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[object]:
        """All ranks. A context around forward and backward in which gradients stay local, to
        accumulate them.

        A strategy that can't leave out the exchange does it: the result is the same.

        Args:
            module: that was set up.
            enabled: False for the last batch of a window.
        """
        return self.strategy.no_backward_sync(self._wrapped(module), enabled)

    def _wrapped(self, module: nn.Module) -> nn.Module:
        """The strategy's wrapper of a module.

        Raises:
            ConfigurationError: it wasn't set up.
        """
        return self.session.handle_of(unwrap_module(module)).wrapped

    # state ----------------------------------------------------------------------------------------

    def save(
        self,
        path: PathLike,
        state: Mapping[str, Any],
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """All ranks. Write a checkpoint, which loads under any strategy and number of processes.

        Args:
            path: a local path or a URL.
            state: values are modules and optimizers that were set up here, objects with
                `state_dict()` such as schedulers and loaders, or plain values.
            filter: by name of a module in `state`, a function that is called with each key and
                value of its state dict, and returns True to save it. Such a checkpoint is loaded
                with `strict=False`.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
            ConfigurationError: `state` isn't a dict, or `filter` names something else than a module
                in it.
        """
        check_state("save", path, state)
        if filter:
            state = {**state, **filter_modules(self.strategy, state, filter)}
        from core.session import save_checkpoint  # who neither saves nor loads waits for none of it

        self._set_up()
        with phase("checkpoint"):
            self.strategy.synchronize_model()
            with refuse_endless():
                targets = unwrap(state)
            save_checkpoint(self.session, path, targets)

    def load(
        self,
        path: PathLike,
        state: dict[str, Any] | None = None,
        *,
        strict: bool = True,
        weights_only: bool | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """All ranks. Read a checkpoint; restore objects in `state` in place, and replace its plain
        values.

        Args:
            path: a local path or a URL.
            state: as given to `save`.
            strict: all of its names, all keys of its modules and all parameters of its optimizers
                must be there.
            weights_only: None and True are what always holds: nothing in a checkpoint is executed.
                False is refused.
            renamed: names of tensors and modules by those that they were saved with.

        Returns:
            What was saved and isn't in `state`.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is damaged or foreign.
            CheckpointError: it doesn't fit `state`.
            ConfigurationError: `state` isn't a dict.
        """
        state = state if state is not None else {}
        check_state("load", path, state)
        if weights_only is False:
            raise ConfigurationError(
                "load(weights_only=False): a checkpoint holds tensors and plain values, and "
                "nothing in it is executed. Leave the argument out; read a pickle that you trust "
                "with torch.load."
            )
        from core.session import load_checkpoint

        self._set_up()
        # `unwrap` copies the dicts in which it replaces a wrapper, and loading fills the copies.
        targets = unwrap(state)
        with phase("checkpoint"):
            rest = load_checkpoint(self.session, path, targets, strict=strict, renamed=renamed)
        # Objects were restored in place. What is left are plain values: those that `state` names go
        # into it, the others are returned.
        values = [name for name in state if name in rest and not holds_objects(state[name])]
        nested = {name: value for name, value in targets.items() if isinstance(value, dict)}
        copy_values(state, nested | {name: rest.pop(name) for name in values})
        return rest

    def weights(
        self,
        module: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        names: Iterable[str] | Mapping[str, str] | None = None,
        version: Callable[[], int] | None = None,
    ) -> WeightStream:
        """All ranks. The weights and buffers of a module as whole tensors, one at a time: for an
        engine that serves.

        Args:
            module: that was set up here.
            dtype: of floating-point tensors in the stream, but for those kept in float32; None
                keeps each one's.
            names: of the tensors to stream, or a dict of them with the names that they have there;
                None is all.
            version: returns the `version` of the weights that an iteration begins with; None counts
                the iterations.

        Raises:
            ModuleError: there is no tensor of a name.
            ConfigurationError: the module wasn't set up.
            ImportError: core-weights, which has the stream, isn't installed.
        """
        made: type[WeightStream] = import_home("core_weights", "Fabric.weights").WeightStream
        self._set_up()
        return made(self.strategy, unwrap_module(module), dtype=dtype, names=names, version=version)

    def load_raw(self, path: PathLike, obj: nn.Module | Optimizer, *, strict: bool = True) -> None:
        """All ranks. Load a file that `torch.save(obj.state_dict(), path)` wrote, without Fabric.

        Args:
            path: a local path or a URL.
            obj: a module or an optimizer that was set up here.
            strict: all keys of a module must be there.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is no file of torch, or holds more than tensors and plain
                values.
            CheckpointError: it doesn't fit `obj`.
        """
        self._set_up()
        from core.fabric import raw_state  # whoever saves and loads by Fabric needs none of it

        raw_state.load(self.strategy, path, unwrap(obj), strict=strict)

    # callbacks and loggers ------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method `name` of every callback that has it."""
        for callback in self.callbacks:
            if callable(method := getattr(callback, name, None)):
                method(*args, **kwargs)

    def log(self, name: str, value: float | Tensor, step: int | None = None) -> None:
        """All ranks. Hand a value to the loggers; see `log_dict`."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, float | Tensor], step: int | None = None) -> None:
        """All ranks. Hand values to the loggers, on rank 0 and as they are there: reduce them
        before if need be.

        Args:
            metrics: numbers or tensors of one element, by name.
            step: number of optimizer steps so far; None counts the calls without a number.

        Raises:
            ConfigurationError: a value isn't a number.
        """
        self._metric_log.log(self, metrics, step)

    def teardown(self) -> None:
        """All ranks; idempotent. Leave the process group, forget modules and optimizers, and write
        what was logged.

        Happens at exit too.
        """
        if "_metric_log" in vars(self):
            self._metric_log.save()
        super().teardown()

    @cached_property
    def _loader_setup(self) -> LoaderSetup:
        from core.fabric.loader import LoaderSetup  # the Trainer has loaders and logs of its own

        return LoaderSetup(self.strategy)

    @cached_property
    def _metric_log(self) -> MetricLog:
        from core.fabric.metric_log import MetricLog

        return MetricLog()


def _as_list(given: object) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
