"""The loop of validation and test."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from core.trainer.module import require_method
from core.trainer.profiling import mark_steps, profiled_batches
from core.trainer.signatures import call_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.trainer.loaders import StageLoader
    from core.trainer.metrics import Metrics
    from core.trainer.trainer import Trainer


def evaluate(
    trainer: Trainer, stage: Literal["validation", "test"], loaders: Sequence[StageLoader]
) -> list[dict[str, float]]:
    """All ranks. Run `validation_step` or `test_step` over all loaders, without gradients.

    Returns:
        For each loader what was logged for it, by name, reduced over batches and ranks.
    """
    events, metrics = trainer.events, trainer.evaluation_metrics[stage]
    with evaluation_mode(trainer, metrics):
        with without_gradients(trainer):
            metrics.open(on_epoch_default=True)
            events.emit(f"on_{stage}_start")
            events.emit(f"on_{stage}_epoch_start")
            _run_loaders(trainer, stage, loaders)
            events.emit(f"on_{stage}_epoch_end")
            values = trainer.publish_epoch(metrics)
            metrics.close()
        events.emit(f"on_{stage}_end")
    return _by_loader(values, len(loaders))


@contextmanager
def evaluation_mode(trainer: Trainer, metrics: Metrics) -> Iterator[None]:
    """All ranks. The module is in evaluation mode, and logs to `metrics`; afterwards all is as it was."""
    training = [child for child in trainer.module.modules() if child.training]
    previous, trainer.metrics = trainer.metrics, metrics
    trainer.module.eval()
    try:
        yield
    finally:
        metrics.close()
        trainer.module.eval()
        for child in training:
            child.training = True
        trainer.metrics = previous


@contextmanager
def without_gradients(trainer: Trainer) -> Iterator[None]:
    """All ranks. Nothing inside keeps a graph."""
    inference = trainer.options.inference_mode and trainer.strategy.evaluates_in_inference_mode
    with torch.inference_mode(inference), torch.no_grad():
        yield


def _run_loaders(trainer: Trainer, stage: str, loaders: Sequence[StageLoader]) -> None:
    method = require_method(trainer.module, f"{stage}_step", stage)
    call = call_with(trainer.strategy.step_callable(f"{stage}_step", trainer.module), method, num_arguments=3)
    call = trainer.profiled(f"{stage}_step", call)
    context = trainer.strategy.forward_context()
    start, end = (trainer.events.hook(f"on_{stage}_batch_{edge}") for edge in ("start", "end"))
    if trainer.stage != "fit":
        end = mark_steps(trainer, end)
    metrics = trainer.metrics
    for dataloader_idx, loader in enumerate(loaders):
        transfer, batch_idx = trainer.make_transfer(dataloader_idx), -1
        metrics.dataloader_idx = dataloader_idx if len(loaders) > 1 else None
        for batch_idx, batch in enumerate(profiled_batches(trainer, loader.batches())):
            if transfer is not None:
                batch = transfer(batch)
            metrics.batch = batch
            if start is not None:
                start(batch, batch_idx, dataloader_idx)
            if context is None:
                output = call(batch, batch_idx, dataloader_idx)
            else:
                with context:
                    output = call(batch, batch_idx, dataloader_idx)
            if end is not None:
                end(output, batch, batch_idx, dataloader_idx)
        if batch_idx < 0 and loader.num_batches:
            warn_of_silence(stage, loader)
    metrics.dataloader_idx = metrics.batch = None


def warn_of_silence(stage: str, loader: StageLoader) -> None:
    """A loader has given nothing, which may be right for one rank of several."""
    warnings.warn(
        f"A {stage} loader ({type(loader.loader).__name__}) gave no batch: it is empty, or an iterator that can be "
        "read once.",
        stacklevel=2,
    )


def _by_loader(values: dict[str, float], num_loaders: int) -> list[dict[str, float]]:
    """A dict a loader; names without an index belong to all."""

    def belongs(name: str, index: int) -> bool:
        _, marker, suffix = name.rpartition("/dataloader_idx_")
        return not marker or suffix.removesuffix("_epoch") == str(index)

    return [{name: value for name, value in values.items() if belongs(name, index)} for index in range(num_loaders)]


def describe_results(stage: str, results: Sequence[dict[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Rows (name, a value for each loader) of the table that ends a validation or test run."""
    names = sorted({name for result in results for name in result})
    return [(name, [result.get(name) for result in results]) for name in names]
