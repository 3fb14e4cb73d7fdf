"""The loop of prediction."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from core.contract import ModuleError
from core.data import to_device
from core.watch import phase
from core_training.hooks.events import override_of
from core_training.logging.metric_collector import MetricCollector
from core_training.loops.evaluate import evaluation_mode, run_loaders, without_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_training.run import Run
    from core_training.stage_data.evaluation_loaders import StageLoader

_CPU = torch.device("cpu")
_MISSING = object()


def predict(run: Run, loaders: Sequence[StageLoader], *, returns: bool) -> list[Any] | None:
    """All ranks. Run `predict_step` over all loaders, without gradients; see `Trainer.predict`."""
    events, predictions = run.events, [list[Any]() for _ in loaders]
    step = override_of(run.module, "predict_step")
    assert step is not None  # checked before any process starts

    def collect(dataloader_idx: int, output: object) -> None:
        if returns:
            predictions[dataloader_idx].append(to_device(output, _CPU))

    with phase("prediction"), evaluation_mode(run, _NullMetricCollector(on_epoch_default=True)):
        with without_gradients(run):
            events.emit("on_predict_start")
            events.emit("on_predict_epoch_start")
            run_loaders(run, "predict", step, loaders, collect)
            events.emit("on_predict_epoch_end")
        events.emit("on_predict_end")
    if not returns:
        return None
    gathered = _gather(run, predictions)
    if len(gathered) == 1:
        return gathered[0]
    return gathered


def _gather(run: Run, predictions: list[list[object]]) -> list[list[Any]]:
    """The batches of all shards of the data, step by step, on rank 0; elsewhere this rank's."""
    strategy = run.strategy
    if not strategy.session.has_peers:
        return predictions
    gathered = strategy.gather_objects((strategy.data_parallel_rank, predictions))
    if gathered is None:
        return predictions
    # ranks of one shard have predicted the same: the first one counts
    shards = dict(reversed(gathered))
    # Step by step, the batches of all shards in their order: that of the data set.
    joined = []
    for parts in zip(*(shards[rank] for rank in sorted(shards)), strict=True):
        steps = chain.from_iterable(zip_longest(*parts, fillvalue=_MISSING))
        joined.append([output for output in steps if output is not _MISSING])
    return joined


class _NullMetricCollector(MetricCollector):
    """Refuses to log: values would neither be reduced nor shown."""

    def log(self, name: str, *args: object, **kwargs: object) -> None:
        """Refuse.

        Raises:
            ModuleError: always.
        """
        raise ModuleError(
            f"self.log({name!r}) was called while predicting, which has no metrics. Return the "
            "value from predict_step, or use test_step."
        )
