"""Scaling the loss for several optimizers, over torch's GradScaler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler

from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class LossScaler:
    """One GradScaler, and the facts that it lacks: unscaled optimizers, those that stepped, skipped steps.

    GradScaler wants one `update()` after all steps of an iteration, which forgets all of them. Which step is the last
    isn't known before the next backward, so it is updated then. Updating after each step would unscale a second
    optimizer's gradients twice, or with another scale, when both share one backward.
    """

    def __init__(self, grad_scaler: GradScaler | None = None) -> None:
        self.device_type = "cuda"
        self._grad_scaler = grad_scaler
        self._scaled = False
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()

    @property
    def grad_scaler(self) -> GradScaler:
        """Made at the first use, in the process that trains: it looks for the device."""
        if self._grad_scaler is None:
            self._grad_scaler = GradScaler(self.device_type)
        return self._grad_scaler

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale."""
        # The next backward begins: only now is it known that the steps so far were all of them.
        self._update()
        self._scaled = True
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, and look for overflows; once between two steps."""
        if id(optimizer) in self._unscaled or not _has_gradients(optimizer):
            return
        self._check_order(optimizer)
        self.grad_scaler.unscale_(optimizer)
        # A JointOptimizer has unscaled those that it joins, one of which a hook may clip by itself.
        self._unscaled.update(map(id, (optimizer, *getattr(optimizer, "joined", ()))))

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer unless its gradients overflowed; return whether it stepped."""
        if not _has_gradients(optimizer):
            # GradScaler would fail an assertion; without it the optimizer has nothing to do, or only its own business.
            optimizer.step()
            return True
        self._check_order(optimizer)
        stepped = _step(self.grad_scaler, optimizer)
        self._stepped.add(id(optimizer))
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state after all steps so far."""
        self._update()
        return self.grad_scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale."""
        self.grad_scaler.load_state_dict(state)

    def _update(self) -> None:
        if self._stepped:
            self.grad_scaler.update()
            self._stepped.clear()
            self._unscaled.clear()

    def _check_order(self, optimizer: Optimizer) -> None:
        if self._scaled and id(optimizer) not in self._stepped:
            return
        raise ConfigurationError(
            f"{type(optimizer).__name__} has gradients of a loss that wasn't scaled, or steps twice after a backward. "
            "With float16, call backward(loss) of Fabric, or manual_backward(loss) of the module, before each step; "
            "loss.backward() knows nothing of the scale."
        )


def _step(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Step the optimizer, and return True if it did so.

    The scaler doesn't say. Its scale before and after would, for a synchronization with the device that nothing else
    needs. But it reads the overflow anyway, in order to leave the step out: so a hook of the step has it for free. Only
    a fused optimizer looks on the device, and its verdict has to be read.
    """
    applied = []

    def note(stepped: Optimizer, *_: object) -> None:
        overflow = getattr(stepped, "found_inf", None)
        applied.append(overflow is None or not overflow.item())

    handle = optimizer.register_step_post_hook(note)
    try:
        scaler.step(optimizer)
    finally:
        handle.remove()
    return any(applied)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
