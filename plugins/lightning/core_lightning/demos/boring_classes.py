"""The models and random data sets that reports of bugs begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

from core_lightning.module.module import LightningDataModule, LightningModule

_FEATURES, _SAMPLES = 32, 64
_PARTS = ("train", "val", "test", "predict")


class RandomDataset(Dataset["Tensor"]):
    """Normally distributed rows, drawn once."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class BoringModel(LightningModule):
    """A linear layer from 32 features to 2, which learns to answer with ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's answers, (batch, 2), to features, (batch, 32)."""
        return self.layer(x)  # type: ignore[no-any-return]

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean squared distance, from ones by default."""
        if labels is None:
            labels = torch.ones_like(preds)
        return functional.mse_loss(preds, labels)

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss."""
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """The loss, as `x`."""
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """The loss, as `y`."""
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        """SGD, and a scheduler that divides the learning rate by ten after each epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> Any:
        """64 batches of one row."""
        return DataLoader(RandomDataset(_FEATURES, _SAMPLES))

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def _loader_of(stage: str) -> Callable[[BoringDataModule], DataLoader[Any]]:
    def dataloader(self: BoringDataModule) -> DataLoader[Any]:
        return DataLoader(getattr(self, f"random_{stage}"))

    dataloader.__name__, dataloader.__doc__ = f"{stage}_dataloader", "The stage's rows."
    return dataloader


class BoringDataModule(LightningDataModule):
    """A quarter of 256 rows for each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(_FEATURES, 4 * _SAMPLES)

    def setup(self, stage: str) -> None:
        """Divide the rows."""
        for index, name in enumerate(_PARTS):
            rows = range(index * _SAMPLES, (index + 1) * _SAMPLES)
            setattr(self, f"random_{name}", Subset(self.random_full, rows))

    train_dataloader, val_dataloader = _loader_of("train"), _loader_of("val")
    test_dataloader, predict_dataloader = _loader_of("test"), _loader_of("predict")
