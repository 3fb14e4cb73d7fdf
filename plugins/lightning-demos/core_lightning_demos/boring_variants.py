"""Further models and data that reports of bugs begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from core_lightning.demos.boring_classes import BoringDataModule, BoringModel, RandomDataset
from core_lightning.module.module import LightningDataModule, LightningModule


class RandomDictDataset(RandomDataset):
    """Random rows in a dict: `a`, and `b`, which is larger by 2."""

    def __getitem__(self, index: int) -> Any:
        row = self.data[index]
        return {"a": row, "b": row + 2}


class RandomIterableDataset(IterableDataset["Tensor"]):
    """Rows that are drawn when they are asked for."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.randn(self.size) for _ in range(self.count))


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """Random rows with a length."""

    def __len__(self) -> int:
        return self.count


class ManualOptimBoringModel(BoringModel):
    """The same model, which steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        optimizer, loss = self.optimizers(), self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class BoringDataModuleNoLen(BoringDataModule):
    """Rows without a length: 512, 128, 256 and 64."""

    def __init__(self) -> None:
        LightningDataModule.__init__(self)

    def setup(self, stage: str) -> None:
        """Make the stage's data."""
        counts = {"train": 512, "val": 128, "test": 256, "predict": 64}
        if stage == "fit":
            names = ["train", "val"]
        elif stage == "validate":
            names = ["val"]
        else:
            names = [stage]
        for name in names:
            setattr(self, f"random_{name}", RandomIterableDataset(32, counts[name]))


class DemoModel(LightningModule):
    """A linear layer and a ReLU."""

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1 = nn.Linear(32, out_dim)
        self.learning_rate = learning_rate

    def forward(self, x: Tensor) -> Tensor:
        """The answers, (batch, out_dim)."""
        return torch.relu(self.l1(x.view(x.size(0), -1)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The sum of the answers."""
        return self(batch).sum()

    def configure_optimizers(self) -> Any:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class Net(nn.Module):
    """The small network for digits of 28 by 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of probabilities, (batch, 10), for images, (batch, 1, 28, 28)."""
        maps = functional.max_pool2d(self.conv2(self.conv1(x).relu()).relu(), 2)
        hidden = self.fc1(self.dropout1(maps).flatten(1)).relu()
        return functional.log_softmax(self.fc2(self.dropout2(hidden)), dim=1)
