"""A user's loader, sharded, divided into steps and brought to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.data import LoaderSharder, divide_global_batch, make_transfer
from core.fabric.loader import FabricDataLoader

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.contract.step import Stage
    from core.data import GlobalBatch


class LoaderSetup:
    """The part of `Fabric.setup_dataloaders` that concerns one loader."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._sharder = LoaderSharder(strategy)

    def set_up(self, loader: Any, shard: bool, move: bool, stage: Stage, num_samples: int | None) -> FabricDataLoader:
        """All ranks. The loader that the user iterates over; see `Fabric.setup_dataloaders`."""
        if isinstance(loader, FabricDataLoader) or not hasattr(loader, "__iter__"):
            state = "was set up already" if isinstance(loader, FabricDataLoader) else "can't be iterated over"
            raise ConfigurationError(f"setup_dataloaders: {type(loader).__name__} {state}. Pass your own DataLoader.")
        divided = self._divide(num_samples, loader, shard, stage) if num_samples is not None else None
        if shard:
            loader = self._sharder.shard(loader, stage, divided)
        transfer = make_transfer(self._strategy.root_device) if move else None
        return FabricDataLoader(self._strategy.setup_dataloader(loader, stage), loader, transfer, divided)

    def _divide(self, num_samples: object, loader: object, shard: bool, stage: Stage) -> GlobalBatch:
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise ConfigurationError(
                f"setup_dataloaders(global_batch_size={num_samples!r}): expected a number of samples of at least 1."
            )
        if stage != "fit":
            raise ConfigurationError(
                f"setup_dataloaders(global_batch_size={num_samples}, stage={stage!r}): only training makes optimizer "
                "steps. Leave it out for this loader."
            )
        num_shards, warns = self._strategy.data_parallel_size, self._strategy.is_global_zero
        return divide_global_batch(num_samples, loader, num_shards=num_shards, shards=shard, warns=warns)
