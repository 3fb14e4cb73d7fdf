"""The attachment of a profiler to a run, once when a stage begins. Without one, nothing here is in
a step.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import Strategy, TrainingStep
    from core_training.profilers import Profiler
    from core_training.run import Run


@contextmanager
def profiled_stage(run: Run) -> Iterator[None]:
    """All ranks. Measure what happens inside, and report it afterwards."""
    profiler = run.profiler
    if profiler is None:
        yield
        return
    assert run.stage is not None
    profiler.setup(run.stage, run.log_dir, run.strategy.global_rank)
    try:
        yield
    finally:
        profiler.teardown()
        run.fabric.print(profiler.describe())


def profile_parts(profiler: Profiler | None, step: TrainingStep, strategy: Strategy) -> None:
    """Measure forward, backward and update of a step that the strategy makes of its parts."""
    if profiler is None:
        return
    step.compute_loss = profiler.wrap("training_step", step.compute_loss)
    step.step_optimizer = profiler.wrap(
        "optimizer_step", step.step_optimizer or strategy.optimizer_step
    )
    before, after = step.before_backward, step.after_backward

    def start_backward(loss: Any) -> None:
        if before is not None:
            before(loss)
        profiler.start("backward")

    def stop_backward() -> None:
        profiler.stop("backward")
        if after is not None:
            after()

    step.before_backward, step.after_backward = start_backward, stop_backward


def mark_steps(
    profiler: Profiler | None, batch_end: Callable[..., object] | None
) -> Callable[..., object] | None:
    """A batch's last hook, after which the profiler's `step` is called."""
    if profiler is None:
        return batch_end
    mark = profiler.step

    def end(*args: object) -> None:
        if batch_end is not None:
            batch_end(*args)
        mark()

    return end
