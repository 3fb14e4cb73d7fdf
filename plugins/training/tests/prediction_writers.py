"""Writers of predictions. Workers import them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from core.callbacks import BasePredictionWriter


class Writer(BasePredictionWriter):
    """Writes a file for each batch, and one for everything, with the rank in its name."""

    def __init__(self, folder: Any, write_interval: Any) -> None:
        super().__init__(write_interval)
        self.folder = Path(folder)

    def write_on_batch_end(
        self,
        trainer: Any,
        module: Any,
        prediction: Any,
        batch_indices: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        name = f"{dataloader_idx}-{batch_idx}-rank{trainer.global_rank}.pt"
        torch.save(
            {"prediction": prediction, "indices": batch_indices, "batch": batch}, self.folder / name
        )

    def write_on_epoch_end(
        self, trainer: Any, module: Any, predictions: Any, batch_indices: Any
    ) -> None:
        name = f"all-rank{trainer.global_rank}.pt"
        torch.save(
            {"predictions": list(predictions), "indices": list(batch_indices)}, self.folder / name
        )
