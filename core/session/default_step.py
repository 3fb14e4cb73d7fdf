"""One training step, made of a strategy's small parts, each of which it may override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.step import StepOutput
from core.session.required import required

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.optim import Optimizer

    from core.contract.step import TrainingStep
    from core.contract.strategy import Strategy
    from core.session.session import Session


def run(session: Session, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
    """All ranks. The default of `Strategy.run_training_step`."""
    strategy = session.strategy
    if step.manual:
        return StepOutput(step.compute_loss(batch, batch_idx))
    # Within a window gradients only add up, on their rank.
    if not step.ends_window:
        with strategy.no_backward_sync(step.module):
            return StepOutput(_compute_gradients(strategy, batch, batch_idx, step))
    if not step.optimizers:
        return StepOutput(_compute_gradients(strategy, batch, batch_idx, step))
    optimizer = step.optimizers[0]
    if step.needs_closure:
        return _step_with_closure(strategy, batch, batch_idx, step, optimizer)
    loss = _compute_gradients(strategy, batch, batch_idx, step)
    # In a longer window earlier batches may have left gradients, so its end steps also if the last
    # batch was skipped.
    if loss is None and step.num_accumulated == 1:
        return StepOutput(loss)
    return StepOutput(loss, 1, _update(strategy, optimizer, step))


def _compute_gradients(
    strategy: Strategy, batch: object, batch_idx: int, step: TrainingStep
) -> Tensor | None:
    loss = step.compute_loss(batch, batch_idx)
    if loss is None:
        return None
    weights = strategy.session.weights
    if weights is not None:
        share = weights.share(loss, step)
    else:
        share = loss
        if step.num_accumulated > 1:
            share = share / step.num_accumulated
        if step.weight is not None:
            share = share * step.weight
    if not share.requires_grad and not step.optimizers:
        return loss  # training without an optimizer, and without anything that backward could reach
    if step.before_backward is not None:
        step.before_backward(share)
    if step.backward is not None:
        step.backward(share)
    else:
        strategy.backward(share, step.module)
    if weights is not None and step.ends_window and step.optimizers:
        weights.correct(step.optimizers[0])
    if step.after_backward is not None:
        step.after_backward()
    return loss.detach()


def _update(
    strategy: Strategy,
    optimizer: Optimizer,
    step: TrainingStep,
    closure: Callable[[], object] | None = None,
) -> int:
    # With a closure, the optimizer asks for the gradients, which are prepared where they come to
    # be.
    if closure is None and not _prepare_update(strategy, optimizer, step):
        _zero_grad(strategy, optimizer, step)
        return 0
    step_optimizer = step.step_optimizer or strategy.optimizer_step
    updated: int | None = step_optimizer(optimizer, closure)
    if updated is None:  # no call in a step that is as it should be
        required(strategy, "optimizer_step", updated, "whether parameters were updated")
    _zero_grad(strategy, optimizer, step)
    return int(updated or 0)


def _prepare_update(strategy: Strategy, optimizer: Optimizer, step: TrainingStep) -> bool:
    """False if the window's items have no weight, so that there is nothing to learn from."""
    weights = strategy.session.weights
    if weights is not None and not weights.close(optimizer):
        return False
    if step.before_optimizer_step is not None:
        strategy.precision_plugin.unscale_gradients(optimizer)
        step.before_optimizer_step(optimizer)
    if step.clip_gradients is not None:
        strategy.precision_plugin.unscale_gradients(optimizer)
        step.clip_gradients(optimizer)
    elif step.clipping is not None:
        strategy.clip_gradients(step.module, optimizer, step.clipping)
    return True


def _zero_grad(strategy: Strategy, optimizer: Optimizer, step: TrainingStep) -> None:
    if step.before_zero_grad is not None:
        step.before_zero_grad(optimizer)
    if step.zero_grad is not None:
        step.zero_grad(optimizer)
    else:
        optimizer.zero_grad()


def _step_with_closure(
    strategy: Strategy, batch: object, batch_idx: int, step: TrainingStep, optimizer: Optimizer
) -> StepOutput:
    losses: list[Tensor | None] = []
    num_updates = 1

    def closure() -> Tensor | None:
        nonlocal num_updates
        # The first evaluation adds to the gradients of the window's earlier batches; each further
        # one starts from none.
        if losses:
            _zero_grad(strategy, optimizer, step)
        losses.append(_compute_gradients(strategy, batch, batch_idx, step))
        if not _prepare_update(strategy, optimizer, step):
            num_updates = 0
            _zero_grad(strategy, optimizer, step)
            # to None: momentum would go on with zeros, which the user's own may leave
            optimizer.zero_grad()
        return losses[-1]

    updated = _update(strategy, optimizer, step, closure)
    return StepOutput(next(iter(losses), None), 1, updated * num_updates)
