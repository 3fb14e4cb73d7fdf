"""A training step whose phases are measured, by the hooks and functions that are called in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from core.contract import Capability
from core_resilience.clocks import Clock, DeviceClock, ThreadClock, WallClock
from core_resilience.own_time import PHASES, OwnTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core import Strategy
    from core.contract import TrainingStep

_OPAQUE = Capability.OWNS_STEP | Capability.COMPILED_STEP
"""Engines that call forward, backward and optimizer by themselves."""


class MeasuredStep:
    """Stands around what a training step calls.

    A wrapper of torch's, as of ddp, communicates before it calls its module, and at the end of
    backward. There a rank's own forward and backward are what comes between. Other strategies
    communicate within both.
    """

    def __init__(
        self, step: TrainingStep, own: OwnTime, strategy: Strategy, module: nn.Module
    ) -> None:
        """All ranks, between two phases.

        Args:
            step: to be measured, until `leave`.
            own: measures.
            strategy: whose step it is.
            module: the user's own.
        """
        self.step = step
        self._own = own
        is_opaque = step.manual or bool(_OPAQUE & strategy.capabilities)
        waits_within = any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules())
        is_apart = (
            isinstance(step.module, DistributedDataParallel) and not waits_within and not is_opaque
        )
        own.clocks = _clocks(strategy.root_device, is_apart=is_apart, is_opaque=is_opaque)
        self._handle: RemovableHandle | None = None
        if is_apart:
            wrapped: Any = step.module.module
            self._handle = wrapped.register_forward_pre_hook(lambda *_: own.begin("forward"))
        if not is_opaque and not step.needs_closure:
            step.step_optimizer = self._measured(step.step_optimizer or strategy.optimizer_step)

    def begin(self) -> None:
        """The batch is there."""
        self._own.begin("forward" if self._handle is None else None)

    def begin_backward(self, loss: Tensor) -> None:
        """Forward is over. Backward ends when this rank's gradients are there, and not when the
        others' are.
        """
        self._own.begin("backward")
        if self._handle is not None:
            loss.register_hook(self._call_at_end)

    def end_backward(self) -> None:
        """Gradients of all ranks are there."""
        if self._handle is not None and self._own.phase == "backward":
            self._own.drop()  # nothing has said when the own ones were
        self._own.begin("hooks")

    def leave(self) -> None:
        """Measure it no longer."""
        if self._handle is not None:
            self._handle.remove()

    def _call_at_end(self, gradient: Tensor) -> None:
        """In backward. Register a call at its end, before that of the wrapper, which registers its
        own later.
        """
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end_own_backward)

    def _end_own_backward(self) -> None:
        if self._own.phase == "backward":
            self._own.begin(None)

    def _measured(self, step_optimizer: Callable[..., int]) -> Callable[..., int]:
        def update(optimizer: Optimizer, closure: Callable[[], Any] | None) -> int:
            self._own.begin("optimizer")
            try:
                return step_optimizer(optimizer, closure)
            finally:
                self._own.begin("hooks")

        return update


def _clocks(device: torch.device, *, is_apart: bool, is_opaque: bool) -> dict[str, Clock]:
    """The clocks of the phases that are measured.

    Args:
        device: of the rank.
        is_apart: ranks wait for each other at the end of backward, and not within forward and
            backward.
        is_opaque: forward, backward and update can't be told apart.
    """
    around: Clock = DeviceClock() if device.type == "cuda" else WallClock()
    if is_opaque:
        return {"data": around}
    if is_apart:
        return dict.fromkeys(PHASES, around)
    within = {} if device.type != "cpu" else dict.fromkeys(("forward", "backward"), ThreadClock())
    return {"data": around, "optimizer": around, **within}
