"""Weights that ranks average every so many steps, where the post-local SGD hook averages no
gradients.

Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from core.strategies import ParallelStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer


class LocalSGD(ParallelStrategy):
    """Base of `DDPStrategy`: averages weights that have drifted apart, if a period is given."""

    _averaging_period: int | None
    _comm_state: object
    _averager: PeriodicModelAverager | None = None
    _is_apart = False

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. The optimizer as it is; with post-local SGD, weights will be averaged after
        its steps.
        """
        if self._averaging_period is not None and isinstance(self._comm_state, PostLocalSGDState):
            self._averager = PeriodicModelAverager(
                period=self._averaging_period, warmup_steps=self._comm_state.start_localSGD_iter
            )
        return optimizer

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step the optimizer, and average the weights where that is due."""
        updated = super().optimizer_step(optimizer, closure)
        if (averager := self._averager) is not None:
            local_step = averager.step - averager.warmup_steps
            averager.average_parameters(optimizer.param_groups)
            self._is_apart = local_step > 0 and local_step % averager.period != 0
        return updated

    def synchronize_model(self) -> None:
        """All ranks. With post-local SGD, average weights and moments that have drifted apart since
        the last time.
        """
        if not self._is_apart:
            return
        self._is_apart = False
        with torch.no_grad():
            for optimizer in self.optimizers:
                for parameter in (
                    each for group in optimizer.param_groups for each in group["params"]
                ):
                    moments = [
                        value
                        for key, value in optimizer.state.get(parameter, {}).items()
                        if key != "step"
                    ]
                    for tensor in (
                        parameter,
                        *(value for value in moments if isinstance(value, Tensor)),
                    ):
                        tensor.copy_(self.reduce(tensor))
