"""The loop of validation and test."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

import torch

from core.contract import Capability
from core.watch import heartbeat, phase
from core_training.hooks.argument_counts import call_with
from core_training.loops.profiling import mark_steps
from core_training.module.module import require_method
from core_training.settings.warn_at import warn_caller
from core_training.views.logger_publisher import publish_epoch, show_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core_training.logging.metric_collector import MetricCollector
    from core_training.run import Run
    from core_training.stage_data.evaluation_loaders import StageLoader

_END = object()


def evaluate(
    run: Run, stage: Literal["validation", "test"], loaders: Sequence[StageLoader]
) -> list[dict[str, float]]:
    """All ranks. Run `validation_step` or `test_step` over all loaders, without gradients.

    Returns:
        For each loader what was logged for it, by name, reduced over batches and ranks.
    """
    events, metrics = run.events, run.logged.evaluation[stage]
    with phase(stage), evaluation_mode(run, metrics):
        with without_gradients(run):
            metrics.open(on_epoch_default=True)
            events.emit(f"on_{stage}_start")
            events.emit(f"on_{stage}_epoch_start")
            run_loaders(run, stage, require_method(run.module, f"{stage}_step", stage), loaders)
            show_epoch(run, metrics)
            events.emit(f"on_{stage}_epoch_end")
            values = publish_epoch(run, metrics, hands_over=not run.sanity_checking)
            metrics.close()
        events.emit(f"on_{stage}_end")
    return _by_loader(values, len(loaders))


@contextmanager
def evaluation_mode(run: Run, metrics: MetricCollector) -> Iterator[None]:
    """All ranks. Wrapper and module are in evaluation mode, and log to `metrics`; afterwards all is
    as it was.
    """
    wrapper = run.session.handle_of(run.module).wrapped
    roots = dict.fromkeys((wrapper, run.module))
    training = [child for root in roots for child in root.modules() if child.training]
    run.logged.keep_step_values()
    previous, run.metrics = run.metrics, metrics
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        metrics.close()
        for root in roots:
            root.eval()
        # One by one, and not by `train()`: the user may have left some parts in evaluation mode.
        for child in training:
            child.training = True
        run.logged.keep_step_values()
        run.metrics = previous


@contextmanager
def without_gradients(run: Run) -> Iterator[None]:
    """All ranks. A context in which no graph is kept. What a module makes within `fit`, it may
    train with.
    """
    inference = (
        run.options.inference_mode
        and not run.trains
        and Capability.INFERENCE_MODE in run.strategy.capabilities
    )
    # `inference_mode(False)` turns gradients on, so no_grad is inside of it.
    with torch.inference_mode(inference), torch.no_grad():
        yield


def run_loaders(
    run: Run,
    stage: Literal["validation", "test", "predict"],
    method: Callable[..., object],
    loaders: Sequence[StageLoader],
    collect: Callable[[int, object], None] | None = None,
) -> None:
    """All ranks. Call the stage's step, and the hooks around it, for each batch of each loader.

    Args:
        run: in the stage.
        stage: as names of steps and hooks have it.
        method: the module's step, as the user wrote it.
        loaders: of the stage.
        collect: gets the number of the loader and what the step returned.
    """
    step = run.strategy.step_callable(f"{stage}_step", run.module)
    call = call_with(step, method, num_arguments=3, num_loaders=len(loaders))
    call = run.profiled(f"{stage}_step", call)
    fetch: Callable[..., object] = run.profiled("fetch_batch", next)
    context = run.strategy.forward_context() or nullcontext()
    start, end = (run.events.hook(f"on_{stage}_batch_{edge}") for edge in ("start", "end"))
    if run.stage != "fit":
        end = mark_steps(run.profiler, end)
    metrics = run.metrics
    for dataloader_idx, loader in enumerate(loaders):
        transfer, uneven, batch_idx = run.make_transfer(dataloader_idx), loader.uneven, -1
        if len(loaders) > 1:
            metrics.dataloader_idx = dataloader_idx
        batches = loader.batches()
        while True:
            batch = fetch(batches, _END)
            if batch is _END:
                break
            batch_idx += 1
            heartbeat.count += 1
            if transfer is not None:
                batch = transfer(batch)
            metrics.batch = batch
            if uneven and batch_idx in uneven and not uneven.pop(batch_idx).weight:
                _join(run, call, batch, batch_idx, dataloader_idx)
                continue
            if start is not None:
                start(batch, batch_idx, dataloader_idx)
            with context:
                output = call(batch, batch_idx, dataloader_idx)
            if end is not None:
                end(output, batch, batch_idx, dataloader_idx)
            if collect is not None:
                collect(dataloader_idx, output)
        if batch_idx < 0 and loader.num_batches:  # which may be right for one rank of several
            warn_caller(
                f"A {stage} loader ({type(loader.loader).__name__}) gave no batch: it is empty, or "
                "an iterator that can be read once."
            )
    metrics.dataloader_idx = metrics.batch = None


def _join(run: Run, call: Callable[..., object], *args: object) -> None:
    """Run a step because the other ranks do, on samples that are theirs: nothing of it counts."""
    # few steps are joined
    from core_training.loops.unchanged_statistics import unchanged_statistics

    run.metrics.share = 0
    with unchanged_statistics(run.module), run.strategy.forward_context() or nullcontext():
        call(*args)
    run.metrics.share = None


def _by_loader(values: dict[str, float], num_loaders: int) -> list[dict[str, float]]:
    """A dict a loader; names without an index belong to all."""
    by_loader: list[dict[str, float]] = [{} for _ in range(num_loaders)]
    for name, value in values.items():
        _, marker, suffix = name.rpartition("/dataloader_idx_")
        for index, own in enumerate(by_loader):
            if not marker or suffix.removesuffix("_epoch") == str(index):
                own[name] = value
    return by_loader
