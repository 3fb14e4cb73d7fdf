"""The state that a step changes beside the parameters, to be put back where the step is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint import collect_random_state, restore_random_state

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core import Strategy


class StepState:
    """Buffers, such as running statistics, and random state, as they were before a step."""

    def __init__(self, module: nn.Module, strategy: Strategy) -> None:
        self._place = strategy.accelerator, strategy.root_device
        self._names = [
            (part, name)
            for part in module.modules()
            for name, _ in part.named_buffers(recurse=False)
        ]

    def keep(self) -> None:
        """A step begins."""
        buffers: list[Tensor] = [getattr(part, name) for part, name in self._names]
        self._kept = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._random_state = collect_random_state(*self._place)

    def put_back(self) -> None:
        """The step that began last hasn't been. A module may have a new tensor for a buffer: it
        gets the old one.
        """
        for (part, name), (buffer, values) in zip(self._names, self._kept, strict=True):
            buffer.detach().copy_(values)
            setattr(part, name, buffer)
        restore_random_state(self._random_state, *self._place)
