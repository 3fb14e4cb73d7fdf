"""The parts of a training step that a module may do in its own way; asked for once, when fit
begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import GradientClipping, ModuleError, empty_hook
from core_training.hooks.events import override_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.optim import Optimizer

    from core.contract import ClippingAlgorithm, TrainingStep
    from core_training.run import Run


class ModuleSteps:
    """The steps of automatic optimization that follow `training_step`, one method each. Override
    what you need.

    A method that isn't overridden is not called: the strategy does its work directly.
    """

    # Module says which; this part of it is no nn.Module, of which a strategy has handles
    trainer: Any

    @empty_hook
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients. An override ends in `super().backward(loss, ...)`, which scales and
        exchanges them.

        Args:
            loss: a scalar with a graph, divided by the accumulation window.
            args: of `Tensor.backward`.
            kwargs: of `Tensor.backward`, such as `retain_graph`.
        """
        for name, value in zip(("gradient", "retain_graph", "create_graph"), args, strict=False):
            kwargs.setdefault(name, value)
        wrapped = self.trainer.session.handle_of(self).wrapped
        self.trainer.strategy.backward(loss, wrapped, **kwargs)

    @empty_hook
    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Step the optimizer. An override may leave that out, but calls the closure in any case,
        itself or in `step`.

        Args:
            epoch: from 0.
            batch_idx: of the batch that ends the accumulation window.
            optimizer: whose `step` goes through the strategy.
            optimizer_closure: runs `training_step` and backward, and returns the loss.
        """
        optimizer.step(closure=optimizer_closure)

    @empty_hook
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Clear the gradients, after each optimizer step."""
        optimizer.zero_grad()

    @empty_hook
    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClippingAlgorithm | None = None,
    ) -> None:
        """Clip gradients before each optimizer step; an override may call `self.clip_gradients`
        with other values.

        Args:
            optimizer: whose gradients are complete and unscaled.
            gradient_clip_val: the Trainer's argument.
            gradient_clip_algorithm: the Trainer's argument.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClippingAlgorithm | None = None,
    ) -> Tensor | None:
        """Clip gradients through the strategy; also for manual optimization.

        Args:
            optimizer: of the gradients.
            gradient_clip_val: the largest norm, or the largest absolute value; None or 0 clips
                nothing.
            gradient_clip_algorithm: `"norm"` or `"value"`.

        Returns:
            The total norm before clipping, if it was computed.
        """
        if not gradient_clip_val:
            return None
        strategy = self.trainer.strategy
        clipping = GradientClipping(float(gradient_clip_val), gradient_clip_algorithm or "norm")
        own = getattr(optimizer, "optimizer", optimizer)
        if strategy.session.weights is not None:
            strategy.session.weights.correct(own)
        return strategy.clip_gradients(self.trainer.session.handle_of(self).wrapped, own, clipping)  # type: ignore[no-any-return]

    @empty_hook
    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step a scheduler.

        Args:
            scheduler: as `configure_optimizers` returned it.
            metric: newest value of the metric that it monitors, None if it monitors none.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)


def apply_overrides(run: Run, step: TrainingStep) -> None:
    """Use the module's overrides of the hooks around the step, such as `optimizer_step`, in this
    step.
    """
    module = run.module
    progress = run.progress
    if step.manual:
        return
    step.backward = override_of(module, "backward")
    zero_grad = override_of(module, "optimizer_zero_grad")
    if zero_grad is not None:
        step.zero_grad = lambda optimizer: zero_grad(progress.epoch, progress.batch, optimizer)
    clip = override_of(module, "configure_gradient_clipping")
    if clip is not None:
        value = algorithm = None
        if step.clipping:
            value, algorithm = step.clipping.value, step.clipping.algorithm
            step.clipping = None
        step.clip_gradients = lambda optimizer: clip(optimizer, value, algorithm)
    step_optimizer = override_of(module, "optimizer_step")
    if step_optimizer is not None:
        step.step_optimizer = _own_optimizer_step(run, step_optimizer)
        step.needs_closure = True


def _own_optimizer_step(
    run: Run, own: Callable[..., object]
) -> Callable[[Optimizer, Callable[[], object] | None], int]:
    module = run.module
    progress = run.progress

    def step(optimizer: Optimizer, closure: Callable[[], Any] | None) -> int:
        assert closure is not None
        evaluated = False

        def evaluate() -> object:
            nonlocal evaluated
            evaluated = True
            return closure()

        before = progress.global_step
        wrapped = run.wrapped_optimizers[run.strategy.optimizers.index(optimizer)]
        own(progress.epoch, progress.batch, wrapped, evaluate)
        if not evaluated:
            raise ModuleError(
                f"{type(module).__name__}.optimizer_step did not call the closure, so there is no "
                "loss and no gradient. Call optimizer.step(closure=optimizer_closure), or where "
                "the step is left out optimizer_closure()."
            )
        # the loop counts what is returned
        updated, progress.global_step = progress.global_step - before, before
        return updated

    return step
