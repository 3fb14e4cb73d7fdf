"""The hooks that give a run its data, which a Module and a DataModule have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import empty_hook
from core.data import to_device

if TYPE_CHECKING:
    import torch


class DataHooks:
    """Hooks that bring data to a stage; all are optional. What a DataModule defines comes before
    what a Module does.

    The call sequence:

    1. `prepare_data()`, one process of each node; the others wait.
    2. `setup(stage)`, all ranks; the process group exists, the model is not built yet.
    3. `train_dataloader()` and its siblings, all ranks; each rank returns the same loader, which is
       sharded afterwards.
    4. `on_before_batch_transfer`, `transfer_batch_to_device`, `on_after_batch_transfer`, all ranks,
       for each batch.
    5. `teardown(stage)`, all ranks, also after an exception.
    """

    prepare_data_per_node: bool = True
    """True to run `prepare_data` once on each node; False for once in all, for nodes that share
    their storage.
    """

    @empty_hook
    def prepare_data(self) -> None:
        """One process of each node. Download, unpack, tokenize: write to disk what all ranks read
        afterwards.

        Don't assign attributes here, since the other ranks don't have them. They wait for as long
        as the process group's timeout allows.
        """

    @empty_hook
    def setup(self, stage: str) -> None:
        """All ranks. Build data sets; `stage` is `"fit"`, `"validate"`, `"test"` or `"predict"`."""

    @empty_hook
    def teardown(self, stage: str) -> None:
        """All ranks. The stage is over, also after an exception."""

    @empty_hook
    def train_dataloader(self) -> Any:
        """All ranks. A loader, or several in a dict, a list or a `CombinedLoader`."""

    @empty_hook
    def val_dataloader(self) -> Any:
        """All ranks. A loader, or several of them, for `validate` and within `fit`."""

    @empty_hook
    def test_dataloader(self) -> Any:
        """All ranks. A loader, or several of them."""

    @empty_hook
    def predict_dataloader(self) -> Any:
        """All ranks. A loader, or several of them."""

    @empty_hook
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """All ranks. Change a batch that is still on the host, and return it."""
        return batch

    @empty_hook
    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int = 0
    ) -> Any:
        """All ranks. Bring a batch to the device. Override it for a structure that isn't known; the
        rest to `super()`.

        Args:
            batch: what the loader gave.
            device: of this rank.
            dataloader_idx: number of the loader, from 0; in training 0.
        """
        return to_device(batch, device)

    @empty_hook
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """All ranks. Change a batch that is on the device, such as to augment it there, and return
        it.
        """
        return batch
