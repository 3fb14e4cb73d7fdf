"""The models and random data sets that reports of bugs begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from core_lightning.module import LightningDataModule, LightningModule

_FEATURES, _SAMPLES = 32, 64
_PARTS_OF = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


class RandomDataset(Dataset["Tensor"]):
    """Normally distributed rows, drawn once."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class RandomDictDataset(RandomDataset):
    """The same in a dict: `a`, and `b`, which is larger by 2."""

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
    """The same with a length."""

    def __len__(self) -> int:
        return self.count


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
        return functional.mse_loss(preds, torch.ones_like(preds) if labels is None else labels)

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
        for name in _PARTS_OF.get(stage, ()):
            start = ("train", "val", "test", "predict").index(name) * _SAMPLES
            setattr(self, f"random_{name}", Subset(self.random_full, range(start, start + _SAMPLES)))

    train_dataloader, val_dataloader = _loader_of("train"), _loader_of("val")
    test_dataloader, predict_dataloader = _loader_of("test"), _loader_of("predict")


class BoringDataModuleNoLen(BoringDataModule):
    """Rows without a length: 512, 128, 256 and 64."""

    def __init__(self) -> None:
        LightningDataModule.__init__(self)

    def setup(self, stage: str) -> None:
        """Make the stage's data."""
        counts = {"train": 512, "val": 128, "test": 256, "predict": 64}
        for name in _PARTS_OF.get(stage, ()):
            setattr(self, f"random_{name}", RandomIterableDataset(_FEATURES, counts[name]))


class DemoModel(LightningModule):
    """A linear layer and a ReLU."""

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1 = nn.Linear(_FEATURES, out_dim)
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
