"""Predictions that go to storage instead of memory."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, IterableDataset, Sampler

from core.contract import ConfigurationError
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import check_choice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from core_training.trainer import Trainer


_INTERVALS = ("batch", "epoch", "batch_and_epoch")


class BasePredictionWriter(Callback):
    """Hands over the predictions of `trainer.predict`, batch by batch, or all at its end. Meant to
    be subclassed.

    Override `write_on_batch_end`, `write_on_epoch_end`, or both. Every rank writes its own shard:
    put the rank into the file's name. Pass `return_predictions=False` to `predict`, and memory
    holds one batch at a time.
    """

    def __init__(
        self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch"
    ) -> None:
        """Create the callback.

        Args:
            write_interval: after each batch, at the end, or both.

        Raises:
            ConfigurationError: none of these.
        """
        check_choice(type(self).__name__, "write_interval", write_interval, _INTERVALS)
        self.write_interval = write_interval
        self._predictions: list[list[object]] = []
        self._indices: list[list[object]] = []
        if write_interval != "epoch":
            self._require("write_on_batch_end")
        if write_interval != "batch":
            self._require("write_on_epoch_end")

    def _require(self, method: str) -> None:
        if getattr(type(self), method) is getattr(BasePredictionWriter, method):
            raise ConfigurationError(
                f"{type(self).__name__}(write_interval={self.write_interval!r}) has no {method}(), "
                "which would be called. Define it, or choose another write_interval."
            )

    def write_on_batch_end(
        self,
        trainer: Trainer,
        module: nn.Module,
        prediction: Any,
        batch_indices: Sequence[Any] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """All ranks. Write what `predict_step` returned for one batch.

        Args:
            trainer: the running trainer.
            module: the user's module.
            prediction: what `predict_step` returned, on the device.
            batch_indices: where the batch's samples are in the data set; None for a loader that
                isn't a DataLoader over a data set with indices.
            batch: its input.
            batch_idx: number of the batch on this rank, from 0.
            dataloader_idx: number of the loader, from 0.
        """
        raise NotImplementedError

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        module: nn.Module,
        predictions: Sequence[Sequence[Any]],
        batch_indices: Sequence[Sequence[Any]],
    ) -> None:
        """All ranks. Write everything at once.

        Args:
            trainer: the running trainer.
            module: the user's module.
            predictions: for each loader what `predict_step` returned, batch after batch, of this
                rank's shard.
            batch_indices: for each of them where its samples are in the data set; see
                `write_on_batch_end`.
        """
        raise NotImplementedError

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Begin with nothing, and with loaders that know the indices of their batches."""
        loaders = trainer.loaders.predict
        for index, each in enumerate(loaders):
            if _knowing_sampler(each.loader) is None:
                loaders[index] = replace(each, loader=with_noted_indices(each.loader))
        self._predictions = [[] for _ in loaders]
        self._indices = [[] for _ in loaders]

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the batch, or keep it for the end."""
        indices = None
        sampler = _knowing_sampler(trainer.loaders.predict[dataloader_idx].loader)
        if sampler is not None:
            indices = sampler.advance()  # of the batch that the loop has just taken
        if self.write_interval != "epoch":
            self.write_on_batch_end(
                trainer, module, outputs, indices, batch, batch_idx, dataloader_idx
            )
        if self.write_interval != "batch":
            self._predictions[dataloader_idx].append(outputs)
            self._indices[dataloader_idx].append(indices)

    def on_predict_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Write what was kept."""
        if self.write_interval != "batch":
            self.write_on_epoch_end(trainer, module, self._predictions, self._indices)
        self._predictions = []
        self._indices = []


def _knowing_sampler(loader: object) -> Any:
    """The sampler that cuts the shards, or notes what it gives; None if there is none."""
    samplers = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    return next((sampler for sampler in samplers if hasattr(sampler, "advance")), None)


def with_noted_indices(loader: object) -> object:
    """A copy of a DataLoader, with a sampler whose `advance()` returns the indices of the next
    batch.

    Any other loader, whose batches have no indices, is returned as it is.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    clone = copy.copy(loader)
    attributes = vars(clone)
    attributes["_iterator"] = None  # persistent workers belong to the user's loader
    name = "batch_sampler"
    if loader.batch_sampler is None:
        name = "sampler"
    attributes[name] = NotedSampler(getattr(loader, name))
    return clone


class NotedSampler(Sampler[Any]):
    """The user's own sampler, or batch sampler, whose indices are noted on the way to the
    loader.
    """

    def __init__(self, order: Any) -> None:
        self.order = order
        self._on_the_way: deque[object] = deque()

    def __iter__(self) -> Iterator[Any]:
        self._on_the_way.clear()
        for indices in self.order:
            self._on_the_way.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self.order)

    def advance(self) -> Any:
        """The indices of the batch that the loop has just taken; None if there is no such batch."""
        if self._on_the_way:
            return self._on_the_way.popleft()
        return None
