"""The data of a run: whose loaders, how many of their batches, and where to go on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from core.contract import ConfigurationError
from core.data import sampler_of, set_epoch, shard_loader
from core.trainer.options import take_amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Strategy
    from core.contract.strategy import Stage
    from core.trainer.options import TrainerOptions

_UNKNOWN = float("inf")


@dataclass(frozen=True, slots=True)
class StageLoader:
    """A loader of one rank, and how many of its batches are wanted; infinite if it doesn't know its length."""

    loader: Any
    num_batches: int | float

    def batches(self) -> Iterator[Any]:
        """As many batches as are wanted."""
        return iter(self.loader) if self.num_batches == _UNKNOWN else islice(self.loader, int(self.num_batches))


class Loaders:
    """The loaders of one call of `fit`, `validate` or `test`; sharded by `setup`."""

    def __init__(
        self,
        options: TrainerOptions,
        *,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        needed: str = "train",
    ) -> None:
        """Take the user's loaders as they are.

        Raises:
            ConfigurationError: those that are needed aren't there, or can't be iterated over.
        """
        self._options = options
        self.train_source = train
        self.validation_sources = _as_list(validation)
        self.test_sources = _as_list(test)
        for name, source in (("train", train), ("validation", validation), ("test", test)):
            if source is None and name == needed:
                raise ConfigurationError(f"No {name} loader was given. Pass a DataLoader, or any iterable of batches.")
        for source in (*_as_list(train), *self.validation_sources, *self.test_sources):
            if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
                raise ConfigurationError(
                    f"A loader is {type(source).__name__} {source!r:.80}; expected a DataLoader or an iterable."
                )
        self.train: Any = None
        self.validation: list[StageLoader] = []
        self.test: list[StageLoader] = []
        self.num_train_batches: int | float = 0
        self._num_counted = 0

    def setup(self, strategy: Strategy) -> None:
        """All ranks. Shard the loaders, hand them to the strategy, and count their batches."""
        seed = strategy.broadcast(torch.initial_seed())
        options = self._options

        def prepare(source: Any, stage: Stage, limit: int | float | None, name: str) -> StageLoader:
            loader = source
            if options.use_distributed_sampler:
                rank, size = strategy.data_parallel_rank, strategy.data_parallel_size
                loader = shard_loader(
                    source, rank=rank, size=size, seed=seed, stage=stage, broadcast=strategy.broadcast
                )
            loader = strategy.setup_dataloader(loader, stage)
            return StageLoader(loader, take_amount(limit, length_of(loader), name=name))

        self.validation = [
            prepare(source, "validate", options.limit_val_batches, "limit_val_batches")
            for source in self.validation_sources
        ]
        self.validation = [loader for loader in self.validation if loader.num_batches]
        self.test = [
            prepare(source, "test", options.limit_test_batches, "limit_test_batches") for source in self.test_sources
        ]
        if self.train_source is not None:
            train = prepare(self.train_source, "fit", options.limit_train_batches, "limit_train_batches")
            self.train, self.num_train_batches = train.loader, train.num_batches
            self._refuse_empty()

    def _refuse_empty(self) -> None:
        if self.num_train_batches == 0:
            raise ConfigurationError(
                "The training loader gives no batch: its data set is empty, drop_last dropped all of it, or "
                f"limit_train_batches={self._options.limit_train_batches!r} left none."
            )

    # validation in between ------------------------------------------------------------------------------------------

    @property
    def validation_interval(self) -> int:
        """Validate every so many batches within an epoch; 0 for not within."""
        interval = self._options.val_check_interval
        if not self.validation or interval is None or (interval == 1.0 and isinstance(interval, float)):
            return 0
        return int(take_amount(interval, self.num_train_batches, name="val_check_interval"))

    def validates_after_epoch(self, epoch: int) -> bool:
        """Whether a validation is due when an epoch has ended, and hasn't just been made."""
        every = self._options.check_val_every_n_epoch
        if not self.validation or every is None or (epoch + 1) % every:
            return False
        interval = self.validation_interval
        return interval == 0 or self.num_train_batches % interval == 0

    @contextmanager
    def limited_validation(self, num_batches: int) -> Iterator[list[StageLoader]]:
        """The validation loaders with a few batches each; -1 for all."""
        limit = _UNKNOWN if num_batches < 0 else num_batches
        yield [replace(loader, num_batches=min(loader.num_batches, limit)) for loader in self.validation]

    # position -------------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, start_batch: int) -> None:
        """All ranks, before the training loader is iterated over."""
        set_epoch(self.train, epoch)
        self._num_counted = start_batch

    def open_train(self, start_batch: int) -> Iterator[Any]:
        """All ranks. The epoch's batches from one on; what can't begin there is read up to there."""
        batches: Iterator[Any] = iter(self.train)
        if sampler_of(self.train) is None:
            for _ in islice(batches, start_batch):
                pass
        return batches

    def state_dict(self, num_batches: int) -> dict[str, Any]:
        """All ranks. The training data's position after so many batches of this epoch on this rank."""
        sampler = sampler_of(self.train)
        if sampler is None:
            return {}
        for _ in range(num_batches - self._num_counted):
            sampler.advance()
        self._num_counted = num_batches
        return {"train": sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All ranks. Go on from a position; the loader begins there."""
        sampler = sampler_of(self.train)
        if sampler is not None and "train" in state:
            sampler.load_state_dict(state["train"])


def length_of(loader: Any) -> int | float:
    """Batches of a loader; infinite if it doesn't know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return _UNKNOWN


def _as_list(loaders: Any) -> list[Any]:
    if loaders is None:
        return []
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]
