"""The user's loader, set up: this rank's shard of it, on the device, epoch after epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import CheckpointError, ConfigurationError
from core.data import (
    LoaderSharder,
    divide_global_batch,
    make_transfer,
    read_windows,
    sampler_of,
    set_epoch,
)
from core.watch.phases import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract import Strategy
    from core.contract.step import Stage
    from core.data import GlobalBatch, MicroBatch


class FabricDataLoader:
    """The loader that `fabric.setup_dataloaders` returns.

    Each iteration is an epoch: samplers that shuffle get its number by `set_epoch`.

    With a state that was loaded, the next iteration goes on in the middle of its epoch. Attributes
    that it doesn't have itself are those of the loader.

    `ends_window` and `loss_weight` describe the batch that was yielded last.

    Attributes:
        loader: this rank's own.
        num_accumulated: batches of a whole accumulation window.
        ends_window: True if the batch that was given last ends its window: step the optimizer after
            it.
        loss_weight: the factor for the loss of that batch, so that the gradients of a window add up
            to the mean over its samples. 0 for a batch that repeats a sample of another rank, since
            this one has none left.
        epoch: number of the epoch that is on, or comes next; from 0.
    """

    def __init__(
        self,
        loader: Any,
        source: Any,
        transfer: Callable[[Any], Any] | None,
        global_batch: GlobalBatch | None = None,
    ) -> None:
        """Wrap a loader.

        Args:
            loader: yields batches.
            source: the loader that was sharded, from which the strategy may have made another kind.
            transfer: brings a batch to the device; None if that isn't needed.
            global_batch: the division of the samples of a step; None if each batch is a step.
        """
        self.loader = loader
        self.epoch = 0
        self._source = source
        self._sampler = sampler_of(source)
        self._transfer = transfer
        self._has_begun = False
        self.num_accumulated = 1
        if global_batch is not None:
            self.num_accumulated = global_batch.num_accumulated
        self.ends_window, self.loss_weight = True, 1.0

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch."""
        # An iteration that was left early has begun its epoch, so this is another one.
        if self._has_begun:
            self.epoch += 1
        self._has_begun = True
        set_epoch(self._source, self.epoch)
        sampler, transfer = self._sampler, self._transfer
        batches, accumulates = iter(self.loader), self.num_accumulated > 1
        uneven: dict[int, MicroBatch] = {}
        if sampler is not None and (sampler.num_accumulated is not None or not accumulates):
            uneven = sampler.uneven
        elif accumulates:
            batches = read_windows(batches, uneven, num_accumulated=self.num_accumulated)
        heartbeat.phase = "step"
        for number, batch in enumerate(batches):
            heartbeat.count += 1
            if uneven or accumulates or self.loss_weight != 1.0:
                self._describe(number, uneven.pop(number, None))
            # Before the batch is handed out: a state that is saved while the user works on it
            # counts it.
            if sampler is not None:
                sampler.advance()
            if transfer is not None:
                batch = transfer(batch)
            yield batch
        heartbeat.phase = "end of epoch"
        self.set_epoch(self.epoch + 1)

    def _describe(self, number: int, micro_batch: MicroBatch | None) -> None:
        """Set `ends_window` and `loss_weight` for the batch with this number, from 0, of this
        iteration.
        """
        self.ends_window = (number + 1) % self.num_accumulated == 0
        self.loss_weight = 1 / self.num_accumulated
        if micro_batch is not None:
            self.loss_weight *= micro_batch.weight
            self.ends_window |= micro_batch.ends_window

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its first batch, or from where a loaded state
        stands in it.
        """
        if self._has_begun and self._sampler is not None:
            self._sampler.position = 0  # else the same epoch again would be what is left of it
        self.epoch, self._has_begun = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """The position of the loop: the epoch, and the samples over all ranks. The same on every
        rank.
        """
        set_epoch(self._source, self.epoch)
        get_state = getattr(self.loader, "state_dict", dict)
        if self._sampler is not None:
            get_state = self._sampler.state_dict
        return {"epoch": self.epoch, self._kind: get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there, also with another number of ranks or workers.

        Raises:
            CheckpointError: `state` was saved by another kind of loader, or within an epoch of
                another length.
        """
        if self._kind not in state or "epoch" not in state:
            raise CheckpointError(
                f"This loader goes on from 'epoch' and {self._kind!r}; the checkpoint has "
                f"{sorted(state)}. Set the loader up as it was when the checkpoint was written."
            )
        self.set_epoch(state["epoch"])
        if self._sampler is not None:
            self._sampler.load_state_dict(state["sampler"])
            if self._sampler.position:
                self._sampler.check_length()
        elif state["loader"]:
            self.loader.load_state_dict(state["loader"])

    @property
    def _kind(self) -> str:
        if self._sampler is None:
            return "loader"
        return "sampler"


class LoaderSetup:
    """The part of `Fabric.setup_dataloaders` that concerns one loader."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._sharder = LoaderSharder(strategy)

    def set_up(
        self, loader: Any, shard: bool, move: bool, stage: Stage, num_samples: int | None
    ) -> FabricDataLoader:
        """All ranks. The loader that the user iterates over; see `Fabric.setup_dataloaders`."""
        why = ""
        if isinstance(loader, FabricDataLoader):
            why = "was set up already"
        elif not hasattr(loader, "__iter__"):
            why = "can't be iterated over"
        if why:
            raise ConfigurationError(
                f"setup_dataloaders: {type(loader).__name__} {why}. Pass your own DataLoader."
            )
        divided = transfer = None
        if num_samples is not None:
            if type(num_samples) is not int or num_samples < 1:
                raise ConfigurationError(
                    f"setup_dataloaders(global_batch_size={num_samples!r}): expected a number of "
                    "samples of at least 1."
                )
            if stage != "fit":
                raise ConfigurationError(
                    f"setup_dataloaders(global_batch_size={num_samples}, stage={stage!r}): only "
                    "training makes optimizer steps. Leave it out for this loader."
                )
            num_shards = self._strategy.data_parallel_size
            divided = divide_global_batch(num_samples, loader, num_shards=num_shards, shards=shard)
        if shard:
            loader = self._sharder.shard(loader, stage, divided)
        if move:
            transfer = make_transfer(self._strategy.root_device)
        return FabricDataLoader(
            self._strategy.setup_dataloader(loader, stage), loader, transfer, divided
        )
