"""Numbers that GPUs combine in their queues, for the program to read later: nothing waits for the steps under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from core.contract import Strategy


class QueuedExchange:
    """The largest of the ranks' numbers, read one exchange after it was asked for.

    `tolist()` of a reduced tensor would wait for all work that its GPU has been given, and the GPU would then wait for
    the program's next step. An event marks the point in the queue at which the answer has come to memory.
    """

    def __init__(self, strategy: Strategy) -> None:
        """All ranks; the strategy's device is a GPU of CUDA's or ROCm's."""
        self._strategy = strategy
        self._answer: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def put(self, numbers: list[int]) -> None:
        """All ranks. Queue the exchange of these numbers, from and to memory that the device reaches by itself."""
        device = self._strategy.root_device
        numbers_there = torch.tensor(numbers).pin_memory().to(device, non_blocking=True)
        largest = self._strategy.reduce(numbers_there, reduce_op="max")
        here = torch.empty(len(numbers), dtype=torch.int64).pin_memory()
        here.copy_(largest, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._answer = (here, event)

    def take(self) -> list[int] | None:
        """All ranks. The answer to the last `put`; None if it was taken, or none was queued."""
        if self._answer is None:
            return None
        (here, event), self._answer = self._answer, None
        event.synchronize()
        numbers: list[int] = here.tolist()
        return numbers

    def drop(self) -> None:
        """All ranks. Forget the answer that wasn't taken: a newer one is there."""
        self._answer = None
