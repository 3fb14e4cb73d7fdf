"""Your own training loop, on any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.contract import (
    Capability,
    ConfigurationError,
    GradientClipping,
    ModuleError,
    NonFiniteLossError,
    NotYetChosenError,
)
from core.display import install_for
from core.fabric.checkpoints import Checkpoints
from core.fabric.state import unwrap, unwrap_module
from core.registry import LOGGER_REGISTRY
from core.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from core.contract import Accelerator, ComputesLoss, Logger, Precision, Strategy
    from core.contract.accelerator import Devices
    from core.fabric.metric_log import MetricLog
    from core.resolve import Resolution
    from core.watch import WatchdogOptions
    from core_weights import WeightStream


class Fabric(Checkpoints):
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
        super().__init__(
            self.resolution.session,
            watch,
            compile,
            activation_checkpointing,
            activation_offload,
        )
        self.callbacks: list[Any] = _as_list(callbacks)
        self.loggers: list[Logger] = []
        for logger in _as_list(loggers):
            if isinstance(logger, str):
                logger = LOGGER_REGISTRY.create(logger)
            self.loggers.append(logger)
        if len(self.loggers) > 1:
            from core.loggers.run_folder import refuse_shared_folders  # most have one

            refuse_shared_folders(self.loggers)
        self._ends_by_non_finite_loss = terminate_on_nan

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
            _refuse_non_finite(tensor, self.strategy)
        target = self._target
        if model is not None:
            target = self._wrapped(model)
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
        step = partial(loss_fn, model)
        strategy = self.strategy
        if Capability.COMPUTES_LOSS in strategy.capabilities:
            output = cast("ComputesLoss", strategy).compute_loss(step, batch, unwrap_module(model))
        else:
            output = step(batch)
        loss: Any = output
        weight = None
        if isinstance(output, dict):
            loss, weight = output.get("loss"), output.get("weight")
        if not (
            callable(getattr(loss, "backward", None)) and loss.numel() == 1 and loss.requires_grad
        ):
            raise ModuleError(
                f"loss_fn returned {output!r:.60}; expected a scalar tensor with a graph, or a "
                "dict with one under 'loss' and perhaps the number of items that it is a mean over "
                "under 'weight'."
            )
        self.backward(loss, model=model, weight=weight)
        return cast("Tensor", loss.detach())

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

    # state ----------------------------------------------------------------------------------------

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
        from core.fabric import WeightStream

        self._set_up()
        return WeightStream(
            self.strategy, unwrap_module(module), dtype=dtype, names=names, version=version
        )

    # callbacks and loggers ------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method `name` of every callback that has it."""
        for callback in self.callbacks:
            if callable(getattr(callback, name, None)):
                getattr(callback, name)(*args, **kwargs)

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
    def _metric_log(self) -> MetricLog:
        from core.fabric.metric_log import MetricLog

        return MetricLog()


def _refuse_non_finite(loss: Tensor, strategy: Strategy) -> None:
    """This rank. Wait for a loss of any shape, and end the run if it isn't finite.

    Raises:
        NonFiniteLossError: it is NaN or infinite.
    """
    if bool(torch.isfinite(loss.detach()).all()):
        return
    value: object = loss
    if loss.numel() == 1:
        value = loss.item()
    where = ""
    if strategy.world_size > 1:
        where = f" on rank {strategy.global_rank}"
    raise NonFiniteLossError(
        f"fabric.backward was given a loss of {value}{where}, and terminate_on_nan=True. No "
        "gradients have come of it: weights are those of the step before. "
        "torch.autograd.set_detect_anomaly(True) finds the operation whose gradient is NaN."
    )


def _as_list(given: object) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(given)
    return [given]
