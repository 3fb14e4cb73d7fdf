"""Every rank trains alone; now and then all take the mean of what they have.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from core import Capability, ConfigurationError
from core.strategies import ParallelStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer


class LocalSGDStrategy(ParallelStrategy):
    """Averages weights, and what optimizers keep for them, every `period` optimizer steps; never gradients.

    With `period=1` and an optimizer that is linear in the gradient (SGD, with momentum or without), training equals
    that on one device. Otherwise it doesn't, and isn't meant to: between two averages each rank goes its own way, clips
    its own gradient, and Adam sees the square of a rank's gradient, not that of the mean.

    Before a checkpoint, before validation and when training ends, weights are averaged too, which begins a new period.
    A loop of your own over Fabric calls `fabric.strategy.synchronize_model()` where it ends.
    """

    def __init__(self, *, period: int = 8, start_method: str = "subprocess", **parts: Any) -> None:
        """Say how often to average.

        Args:
            period: in optimizer steps, from 1.
            start_method: name of the launcher that makes the processes if no cluster has.
            parts: of `core.strategies.ParallelStrategy`.

        Raises:
            ConfigurationError: a period that is no positive number.
        """
        super().__init__(**parts)
        if type(period) is not int or period < 1:
            raise ConfigurationError(f"LocalSGDStrategy(period={period!r}): expected a number of steps from 1.")
        self.period = period
        self.launcher_name = start_method
        self._num_local_steps = 0

    @property
    def capabilities(self) -> Capability:
        """No NO_SYNC: no backward exchanges gradients. No CLIP_BY_VALUE: each rank would clip its own, and weigh it.

        With several optimizers one period of steps of all of them would be hard to explain: one, and no manual steps.
        """
        left_out = Capability.CLIP_BY_VALUE | Capability.SEVERAL_OPTIMIZERS | Capability.MANUAL_OPTIMIZATION
        return super().capabilities & ~(left_out | Capability.SEVERAL_MODULES | Capability.WEIGHTED_LOSSES)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Everybody begins with the weights of rank 0."""
        module = super().setup_module(module)
        for tensor in chain(module.parameters(), module.buffers()):
            tensor.data.copy_(self.broadcast(tensor.data))
        return module

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """All ranks. Step, and average at the end of a period.

        Calls are counted, not updates: an overflow in fp16 skips the update of one rank, and all must come together.
        """
        updated = super().optimizer_step(optimizer, closure)
        self._num_local_steps += 1
        if self._num_local_steps == self.period:
            self.synchronize_model()
        return updated

    def synchronize_model(self) -> None:
        """All ranks. Average weights, buffers and moments, if anybody has stepped since the last time."""
        if self._num_local_steps == 0:
            return
        self._num_local_steps = 0
        with torch.no_grad():
            for tensor in self._averaged_tensors():
                tensor.copy_(self.reduce(tensor))

    def release(self) -> None:
        """All ranks; idempotent. Begin anew."""
        super().release()
        self._num_local_steps = 0

    def _averaged_tensors(self) -> Iterator[Tensor]:
        for handle in self.session.handles:
            yield from handle.module.parameters()
            yield from (buffer for buffer in handle.module.buffers() if buffer.is_floating_point())
        for optimizer in self.optimizers:
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if torch.is_tensor(value) and value.is_floating_point())
