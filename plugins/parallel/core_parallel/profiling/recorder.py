"""The times in which each rank of a pipeline computes, recorded in a step for which that was
asked.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_parallel.pipeline.chain import Chain
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
        self._running: list[tuple[str, int, int] | None] = []
        self._since_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since recording began."""
        return time.perf_counter() - self._origin_s

    @contextmanager
    def span(self, kind: str, stage: int = -1, microbatch: int = -1) -> Iterator[None]:
        """A context of one span."""
        with self._within((kind, stage, microbatch)):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context that belongs to no span."""
        with self._within(None):
            yield

    @contextmanager
    def _within(self, what: tuple[str, int, int] | None) -> Iterator[None]:
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
        if self._running and (what := self._running[-1]) is not None:
            self.spans.append(Span(*what, self._since_s, now_s))
        self._since_s = now_s


def check(strategy: Any) -> None:
    """Refuse a strategy that has no stages to record.

    Raises:
        ConfigurationError: nothing is cut into stages.
    """
    if not getattr(strategy, "pipelines", None):
        raise ConfigurationError(
            f"A timeline shows the stages of a pipeline, and {type(strategy).__name__} has cut no "
            "model into stages. Train with MeshParallelStrategy(pipeline=2) or more, or leave it "
            "out."
        )


@contextmanager
def recording(strategy: MeshParallelStrategy) -> Iterator[SpanRecorder]:
    """All ranks. A context of one step whose stages are recorded; the shapes of its batch have been
    trained on before.

    Raises:
        ConfigurationError: nothing is cut into stages.
    """
    check(strategy)
    with ExitStack() as stack:
        dist.barrier()
        recorder = SpanRecorder()
        for chain, scheduled in strategy.pipelines:
            _record_chain(stack, recorder, chain)
            if scheduled is not None:
                _record_schedule(stack, recorder, scheduled)
        _surround(
            stack,
            strategy.precision_plugin,
            "optimizer_step",
            lambda *args: recorder.span("update"),
        )
        yield recorder


def _record_chain(stack: ExitStack, recorder: SpanRecorder, chain: Chain) -> None:
    def computes(kind: str) -> Callable[..., Any]:
        return lambda made, stage, index, *others: recorder.span(kind, stage, index)

    _surround(stack, chain, "_forward", computes("forward"))
    _surround(stack, chain, "_backward", computes("backward"))
    _surround(stack, chain.line, "receive", lambda *args: recorder.waiting())


def _record_schedule(stack: ExitStack, recorder: SpanRecorder, scheduled: ScheduledStep) -> None:
    last = scheduled.last
    _surround(
        stack, scheduled, "_loss_of", lambda run, index, answer: recorder.span("loss", last, index)
    )
    for stage in scheduled.stages:

        def computes(kind: str, number: int = stage.stage_index) -> Callable[..., Any]:
            return lambda index, *args, **kwargs: recorder.span(kind, number, index)

        _surround(stack, stage.submod, "_called", computes("forward"))
        _surround(stack, stage, "backward_one_chunk", computes("backward"))
        _surround(stack, stage, "backward_weight_one_chunk", computes("weights"))


def _surround(stack: ExitStack, owner: Any, name: str, context: Callable[..., Any]) -> None:
    """Run a method of one object within a context, until the stack is closed."""
    method = getattr(owner, name)

    def surrounded(*args: Any, **kwargs: Any) -> Any:
        with context(*args, **kwargs):
            return method(*args, **kwargs)

    vars(owner)[name] = surrounded
    stack.callback(vars(owner).pop, name)
