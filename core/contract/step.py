"""Stages and steps as plain data: the stage's name, the description of a training step, and its
result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core.contract.precision import ClippingAlgorithm

Stage: TypeAlias = Literal["fit", "validate", "test", "predict"]
"""The activity of a Trainer at the time."""


class StepOutput(NamedTuple):
    """The result of a call of `Strategy.run_training_step`.

    Attributes:
        loss: scalar, detached; not divided by the accumulation window. None if the user's step
            skipped the batch.
        num_batches: batches that were consumed; more than one where an engine runs several in one
            call.
        num_optimizer_steps: number of updates of the parameters; `global_step` and step schedulers
            follow it.
    """

    loss: Tensor | None
    num_batches: int = 1
    num_optimizer_steps: int = 0


@dataclass(frozen=True, slots=True)
class GradientClipping:
    """The gradient clipping before a step.

    Attributes:
        value: the largest norm, or the largest absolute value.
        algorithm: which of the two.
        norm_type: p of the p-norm; `float("inf")` for the largest absolute value.
        error_if_nonfinite: raise a RuntimeError if the norm isn't finite, rather than let it
            through.
    """

    value: float
    algorithm: ClippingAlgorithm = "norm"
    norm_type: float = 2.0
    error_if_nonfinite: bool = False

    def clip(self, parameters: list[Tensor]) -> Tensor | None:
        """Clip the gradients of these parameters in place, where this process has them whole.

        Returns:
            The total norm before clipping, a scalar tensor; None for the algorithm `"value"`.
        """
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        if self.algorithm == "norm":
            return clip_grad_norm_(parameters, self.value, self.norm_type, self.error_if_nonfinite)
        clip_grad_value_(parameters, self.value)
        return None


@dataclass(slots=True)
class TrainingStep:
    """The description of one training step. The loop makes it once when a stage begins; a step only
    reads it.

    Anything that the user didn't ask for is None here, so that a step pays for nothing else.

    Attributes:
        compute_loss: `(batch, batch_idx) -> loss`, the user's step through `step_callable` inside
            the forward context. The loss is a scalar with a graph, whole (not divided by the
            window); None skips the batch. With manual optimization it is the user's own return
            value, detached, and backward has happened; so it is with `COMPILED_STEP`, where
            `step_callable` runs the whole program.
        module: the wrapped module that `setup_module` returned.
        optimizers: as `setup_optimizer` returned them. Several that step after one backward are one
            here, one that joins them, and hooks are called for each.
        manual: the user's step runs backward and optimizers itself.
        num_accumulated: batches of an accumulation window. 1 for a strategy with
            `OWNS_ACCUMULATION`.
        ends_window: True if this batch ends its window; the loop sets it before each step.
        clipping: None if gradients aren't clipped, or the strategy has `OWNS_CLIPPING`.
        needs_closure: an optimizer evaluates the loss itself (LBFGS), or the module overrides the
            optimizer's step.
        before_backward: `(loss)`, after_backward: `()`, before_optimizer_step: `(optimizer)`,
            before_zero_grad: `(optimizer)`: the hooks that have an implementation.
        backward: `(loss)`: replaces the strategy's, when the module overrides it.
        clip_gradients: `(optimizer)`: replaces the strategy's, when the module overrides it.
        step_optimizer: `(optimizer, closure)`: replaces the strategy's, when the module overrides
            it.
        zero_grad: `(optimizer)`: replaces `optimizer.zero_grad()`, when the module overrides it.
        weight: of this batch's loss, beside the division by the window; the loop sets it before
            each step of a window whose batches have different numbers of samples. None where all
            weigh alike. Where the user's step gives weights, `Session.weights` has those, and only
            a 0 counts here: samples that another rank has too.
    """

    compute_loss: Callable[[Any, int], Tensor | None]
    module: nn.Module
    optimizers: Sequence[Optimizer]
    manual: bool = False
    num_accumulated: int = 1
    ends_window: bool = True
    clipping: GradientClipping | None = None
    needs_closure: bool = False
    before_backward: Callable[[Tensor], None] | None = None
    after_backward: Callable[[], None] | None = None
    before_optimizer_step: Callable[[Optimizer], None] | None = None
    before_zero_grad: Callable[[Optimizer], None] | None = None
    backward: Callable[[Tensor], None] | None = None
    clip_gradients: Callable[[Optimizer], None] | None = None
    step_optimizer: Callable[[Optimizer, Callable[[], Any] | None], int] | None = None
    zero_grad: Callable[[Optimizer], None] | None = None
    weight: float | None = None

    def release(self) -> None:
        """The stage is over: let go of the module, and of everything that calls it."""
        del self.module, self.optimizers, self.compute_loss
