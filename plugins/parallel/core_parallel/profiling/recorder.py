"""The times in which each rank of a pipeline computes, recorded in a step for which that was
asked.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_parallel.pipeline.scheduled_step import ScheduledStep
    from core_parallel.strategy import MeshParallelStrategy


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a rank computes, in seconds since all ranks began to record.

    Attributes:
        kind: "forward", "loss", "backward"; "weights" where a schedule computes their gradients
            apart; or "update".
        stage, microbatch: their numbers; -1 for an update.
    """

    kind: str
    stage: int
    microbatch: int
    begin_s: float
    end_s: float


class SpanRecorder:
    """The spans of one rank. Those within others are taken out of them, and so are times of
    waiting.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._origin_s = time.perf_counter()
        self._running: list[Any] = []
        self._since_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since recording began."""
        return time.perf_counter() - self._origin_s

    @contextmanager
    def span(self, *what: Any) -> Iterator[None]:
        """A context of one span.

        Args:
            what: its kind, stage and microbatch; nothing while the rank waits.
        """
        self._cut()
        self._running.append(what)
        try:
            yield
        finally:
            self._cut()
            self._running.pop()

    def _cut(self) -> None:
        """End the part of the innermost span that has run since the last cut."""
        now_s = self.now_s
        if self._running and self._running[-1]:
            kind, stage, microbatch = self._running[-1]
            self.spans.append(Span(kind, stage, microbatch, self._since_s, now_s))
        self._since_s = now_s


@contextmanager
def recording(strategy: MeshParallelStrategy) -> Iterator[SpanRecorder]:
    """All ranks. A context of one step whose stages are recorded; the shapes of its batch have been
    trained on before.
    """
    with ExitStack() as stack:
        dist.barrier()
        recorder = SpanRecorder()
        span = recorder.span
        for chain, scheduled in strategy.pipelines:
            for name, kind in {"_forward": "forward", "_backward": "backward"}.items():
                _surround(stack, chain, name, partial(_of_chain, span, kind))
            _surround(stack, chain.line, "receive", lambda *_: span())
            if scheduled is not None:
                _record_schedule(stack, span, scheduled)
        precision = strategy.precision_plugin
        _surround(stack, precision, "optimizer_step", lambda *_: span("update", -1, -1))
        yield recorder


def _of_chain(span: Any, kind: str, made: Any, stage: int, index: int, *_: Any) -> Any:
    return span(kind, stage, index)


def _of_stage(span: Any, kind: str, stage: int, index: int, *_: Any, **__: Any) -> Any:
    return span(kind, stage, index)


def _record_schedule(stack: ExitStack, span: Any, scheduled: ScheduledStep) -> None:
    _surround(
        stack, scheduled, "_loss_of", lambda _, index, __: span("loss", scheduled.last, index)
    )
    for stage in scheduled.stages:
        for owner, name, kind in (
            (stage.submod, "_called", "forward"),
            (stage, "backward_one_chunk", "backward"),
            (stage, "backward_weight_one_chunk", "weights"),
        ):
            _surround(stack, owner, name, partial(_of_stage, span, kind, stage.stage_index))


def _surround(stack: ExitStack, owner: Any, name: str, context: Callable[..., Any]) -> None:
    """Run a method of one object within a context, until the stack is closed."""
    method = getattr(owner, name)

    def surrounded(*args: Any, **kwargs: Any) -> Any:
        with context(*args, **kwargs):
            return method(*args, **kwargs)

    vars(owner)[name] = surrounded
    stack.callback(vars(owner).pop, name)
