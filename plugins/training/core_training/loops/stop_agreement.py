"""The ranks' agreement to stop after a step: ranks that don't stop together wait for each other
forever.

A signal, a clock or `trainer.should_stop` may ask one rank alone to stop. The ranks exchange these
requests at steps that all of them know beforehand: every so many batches, about twice a second, and
before and after all that isn't a step. A single process reacts at once. On GPUs the exchanges
between steps wait for no step: each is queued, and read by the next one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from core_training.signals.exchange_interval import ExchangeInterval

if TYPE_CHECKING:
    from core.contract import Strategy
    from core_training.run import Run


class QueuedExchange:
    """The largest of the ranks' numbers, read one exchange after it was asked for.

    `tolist()` of a reduced tensor would wait for all work that its GPU has been given, and the GPU
    would then wait for the program's next step. An event marks the point in the queue at which the
    answer has come to memory.
    """

    def __init__(self, strategy: Strategy) -> None:
        """All ranks; the strategy's device is a GPU of CUDA's or ROCm's."""
        self._strategy = strategy
        self.answer: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def put(self, numbers: list[int]) -> None:
        """All ranks. Queue the exchange of these numbers, from and to memory that the device
        reaches by itself.
        """
        device = self._strategy.root_device
        numbers_there = torch.tensor(numbers).pin_memory().to(device, non_blocking=True)
        largest = self._strategy.reduce(numbers_there, reduce_op="max")
        here = torch.empty(len(numbers), dtype=torch.int64).pin_memory()
        here.copy_(largest, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self.answer = (here, event)

    def take(self) -> list[int] | None:
        """All ranks. The answer to the last `put`; None if it was taken, or none was queued."""
        if self.answer is None:
            return None
        (here, event), self.answer = self.answer, None
        event.synchronize()
        numbers: list[int] = here.tolist()
        return numbers


class StopAgreement:
    """Decides after the steps of a fit if it must stop.

    Attributes:
        look_at: the batch of the running epoch after which to call `look`; infinite for not at all.
        is_asked: True once all ranks know that one of them has set `should_stop`.
        is_late: True once `max_time` is over on any rank.
    """

    def __init__(self, run: Run) -> None:
        """All ranks, when training begins and its clock runs."""
        self._run, self._guard = run, run.signals
        self._is_alone = not run.session.has_peers
        self._max_s = math.inf
        if run.options.max_time is not None:
            self._max_s = run.options.max_time.total_seconds()
        self._interval, self._batch = ExchangeInterval(), 0
        self.look_at = math.inf
        self.is_asked = self.is_late = False
        self._queue: QueuedExchange | None = None
        self._has_requested = False  # in the exchange that is queued
        if not self._is_alone and run.strategy.root_device.type == "cuda":
            self._queue = QueuedExchange(run.strategy)

    def begin(self, batch: int) -> None:
        """All ranks. The loop goes on with steps after this batch of the epoch."""
        self._batch = batch
        if not self._is_alone:
            self._interval.begin()
            self.look_at = batch + self._interval.num_steps
            return
        self.look_at = math.inf
        if self._max_s < math.inf or self._run.should_stop or self._guard.signal is not None:
            self.wake()

    def wake(self) -> None:
        """Note that a stop may be due. A single process looks after the next step."""
        if self._is_alone:
            self.look_at = -1

    def agree(self, batch: int) -> None:
        """All ranks, between two optimizer steps. Exchange the requests to stop.

        Args:
            batch: of the running epoch.

        Raises:
            Interrupted: a rank got a signal; raised on all ranks.
            KeyboardInterrupt: that signal was Ctrl-C.
        """
        requests = self._requests(batch)
        if self._is_alone:
            self._adopt(requests)
            return
        if self._queue is not None:
            self._queue.answer = None  # a newer one comes
        strategy = self._run.strategy
        agreed = strategy.reduce(
            torch.tensor(requests, device=strategy.root_device), reduce_op="max"
        ).tolist()
        self._adopt(agreed, has_requested=bool(requests[0]))
        self.begin(batch)

    def look(self, batch: int) -> None:
        """All ranks, between two steps of an epoch. As `agree`; on GPUs by the answer to the
        exchange before.

        A request is known one interval later so. Where that is a single, long step, the wait costs
        less than a step.
        """
        if self._queue is None or self._interval.num_steps == 1:
            self.agree(batch)
            return
        agreed = self._queue.take()
        if agreed is not None:
            self._adopt(agreed, has_requested=self._has_requested)
        requests = self._requests(batch)
        self._has_requested = bool(requests[0])
        self._queue.put(requests)
        self.begin(batch)

    def _requests(self, batch: int) -> list[int]:
        """This rank's requests. The largest of each counts: of the negative paces that is the
        slowest rank's.
        """
        is_late = self._run.progress.elapsed_s >= self._max_s
        pace = self._interval.propose(batch - self._batch)
        return [int(self._run.should_stop), int(is_late), self._guard.signal or 0, -pace]

    def _adopt(self, agreed: list[int], *, has_requested: bool = True) -> None:
        """Adopt what all ranks know now; a request of this rank is its own to withdraw."""
        is_asked, is_late, signal, pace = agreed
        self.is_asked, self.is_late, self._interval.num_steps = bool(is_asked), bool(is_late), -pace
        if self.is_asked and not has_requested:
            self._run.should_stop = True
        if signal:
            raise self._guard.agree(signal)
