"""The loop of prediction."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability, ModuleError
from core.data import to_device
from core.trainer.evaluate import evaluation_mode, warn_of_silence, without_gradients
from core.trainer.metrics import Metrics
from core.trainer.profiling import mark_steps, profiled_batches
from core.trainer.signatures import call_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.trainer.loaders import StageLoader
    from core.trainer.trainer import Trainer

_CPU = torch.device("cpu")
_MISSING = object()


def predict(trainer: Trainer, loaders: Sequence[StageLoader], *, returns: bool) -> list[Any] | None:
    """All ranks. Run `predict_step` over all loaders, without gradients; see `Trainer.predict`."""
    events = trainer.events
    with evaluation_mode(trainer, _NoMetrics(on_epoch_default=True)):
        with without_gradients(trainer):
            events.emit("on_predict_start")
            events.emit("on_predict_epoch_start")
            predictions = _run_loaders(trainer, loaders, returns)
            events.emit("on_predict_epoch_end")
        events.emit("on_predict_end")
    if not returns:
        return None
    gathered = _gather(trainer, predictions)
    return gathered[0] if len(gathered) == 1 else gathered


def _run_loaders(trainer: Trainer, loaders: Sequence[StageLoader], returns: bool) -> list[list[Any]]:
    call = _make_call(trainer)
    start, end = (trainer.events.hook(f"on_predict_batch_{edge}") for edge in ("start", "end"))
    end = mark_steps(trainer, end)
    moves = returns and trainer.strategy.root_device != _CPU
    predictions: list[list[Any]] = []
    for dataloader_idx, loader in enumerate(loaders):
        predictions.append([])
        transfer, batch_idx = trainer.make_transfer(dataloader_idx), -1
        for batch_idx, batch in enumerate(profiled_batches(trainer, loader.batches())):
            if transfer is not None:
                batch = transfer(batch)
            if start is not None:
                start(batch, batch_idx, dataloader_idx)
            output = call(batch, batch_idx, dataloader_idx)
            if end is not None:
                end(output, batch, batch_idx, dataloader_idx)
            if returns:
                predictions[-1].append(to_device(output, _CPU) if moves else output)
        if batch_idx < 0 and loader.num_batches:
            warn_of_silence("prediction", loader)
    return predictions


def _make_call(trainer: Trainer) -> Callable[..., Any]:
    step = trainer.strategy.step_callable("predict_step", trainer.module)
    call = trainer.profiled("predict_step", call_with(step, trainer.module.predict_step, num_arguments=3))
    context = trainer.strategy.forward_context()
    if context is None:
        return call

    def call_in_context(*args: Any) -> Any:
        with context:
            return call(*args)

    return call_in_context


def _gather(trainer: Trainer, predictions: list[list[Any]]) -> list[list[Any]]:
    """On rank 0 the batches of all shares of the data, step by step; elsewhere this rank's."""
    strategy = trainer.strategy
    if strategy.world_size == 1 or Capability.COLLECTIVES not in strategy.capabilities:
        return predictions
    gathered = strategy.gather_objects((strategy.data_parallel_rank, predictions))
    if gathered is None:
        return predictions
    shares = dict(reversed(gathered))  # ranks of one share have predicted the same: the first one counts
    by_loader = zip(*(shares[rank] for rank in sorted(shares)), strict=True)
    return [
        [output for output in chain.from_iterable(zip_longest(*parts, fillvalue=_MISSING)) if output is not _MISSING]
        for parts in by_loader
    ]


class _NoMetrics(Metrics):
    """Refuses to log: nothing would be reduced, and nobody would see it."""

    def log(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            ModuleError: always.
        """
        raise ModuleError(
            f"self.log({name!r}) was called while predicting, which has no metrics. Return the value from "
            "predict_step, or use test_step."
        )
