"""The user's optimizer, stepped in the way that the strategy needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from core.fabric.delegation import delegates_to
from core.watch.phases import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy


@delegates_to("optimizer", Optimizer)
class FabricOptimizer(Optimizer):
    """The optimizer that `fabric.setup` returns: `step` goes through strategy and precision.

    Everything else is the wrapped optimizer: `param_groups`, `state`, `state_dict()`,
    `zero_grad()`, hooks. Learning-rate schedulers of torch take it as they take any optimizer.

    Attributes:
        optimizer: the strategy's wrapper of the user's own; may be the same.
    """

    optimizer: Optimizer

    def __init__(
        self,
        optimizer: Optimizer,
        strategy: Strategy,
        on_step: Callable[[int], None] | None = None,
        before_step: Callable[[Optimizer], None] | None = None,
    ) -> None:
        """Wrap an optimizer that `strategy` has set up.

        Args:
            optimizer: as `setup_optimizer` returned it.
            strategy: steps it.
            on_step: called after each step with the number of updates of parameters.
            before_step: called before each step, when gradients are there.
        """
        # Without Optimizer's own state: there is one set of parameter groups, and it is the wrapped
        # optimizer's.
        vars(self).update(
            optimizer=optimizer,
            _step=strategy.optimizer_step,
            _session=strategy.session,
            _on_step=on_step,
            _before_step=before_step,
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update parameters, unless the precision skips the step because gradients overflowed.

        Args:
            closure: clears gradients, computes the loss, calls `fabric.backward` and returns the
                loss.

        Returns:
            The first loss that `closure` returned; None without one. Losses of weight 0 make no
            step.
        """
        heartbeat.count += 1
        heartbeat.phase = "step"
        if closure is not None:
            return self._step_with(closure)
        if self._session.weights is not None and not self._close_window():
            return None
        if self._before_step is not None:
            self._before_step(self.optimizer)
        updated = self._step(self.optimizer)
        if self._on_step is not None:
            self._on_step(updated)
        return None

    def _step_with(self, closure: Callable[[], object]) -> object:
        losses: list[object] = []

        def evaluate() -> object:
            losses.append(closure())
            if self._session.weights is not None and not self._close_window():
                self.optimizer.zero_grad()
            if self._before_step is not None:
                self._before_step(self.optimizer)
            return losses[-1]

        updated = self._step(self.optimizer, evaluate)
        if self._on_step is not None:
            self._on_step(updated)
        return next(iter(losses), None)

    def _close_window(self) -> bool:
        """All ranks. True if there is something to learn from: gradients are then those of the mean
        over all items.
        """
        weights = self._session.weights
        return not weights.by_hand or weights.close(self.optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        if self._session.weights is not None and self._session.weights.by_hand:
            self._session.weights.drop(self.optimizer)
        self.optimizer.zero_grad(set_to_none)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["optimizer"], name)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "step":  # a scheduler counts the steps of this object
            vars(self)[name] = value
        else:
            setattr(self.optimizer, name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
