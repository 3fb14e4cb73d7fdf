"""MNIST's digits: torchvision's data set, or two files of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, random_split

from core import rank_zero_warn
from core_lightning.module.module import LightningDataModule
from core_lightning_demos.downloads import fetched

_FOLDER = "./data"
_SOURCE = "https://pl-public-data.s3.amazonaws.com/MNIST/processed"


class _Files(Dataset[tuple["Tensor", int]]):
    """Digits in `root/MNIST/complete`, in `training.pt` and `test.pt`, each of images and
    classes.
    """

    def __init__(
        self,
        root: str,
        train: bool = True,
        normalize: tuple[float, ...] | None = (0.1307, 0.3081),
        download: bool = True,
        **_: Any,
    ) -> None:
        self.root, self.train, self.normalize = root, train, normalize
        folder = Path(root) / "MNIST" / "complete"
        paths = {name: folder / name for name in ("training.pt", "test.pt")}
        for name, path in paths.items():
            if download:
                fetched(f"{_SOURCE}/{name}", path)
            elif not path.is_file():
                raise RuntimeError(f"Dataset not found: there is no {path}.")
        self.data, self.targets = torch.load(
            paths["training.pt" if train else "test.pt"], weights_only=True
        )

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.data[index].float().unsqueeze(0)
        if self.normalize is not None and len(self.normalize) == 2:
            mean, deviation = self.normalize
            image = (image - torch.as_tensor(mean)) / torch.as_tensor(deviation)
        return image, int(self.targets[index])

    def __len__(self) -> int:
        return len(self.data)


def MNIST(*args: Any, **kwargs: Any) -> Dataset[Any]:
    """The data set of torchvision; that of files if `PL_USE_MOCKED_MNIST` is set, or its own can't
    be downloaded.
    """
    if not os.environ.get("PL_USE_MOCKED_MNIST"):
        TorchvisionMNIST = import_module("torchvision.datasets").MNIST  # a class

        try:
            TorchvisionMNIST(_FOLDER, download=True)
            return TorchvisionMNIST(*args, **kwargs)  # type: ignore[no-any-return]
        except HTTPError as error:
            rank_zero_warn(
                f"torchvision can't download MNIST: {error}. Files with the same digits are used "
                "instead."
            )
    return _Files(*args, **kwargs)


class MNISTDataModule(LightningDataModule):
    """MNIST for training, validation (a part of the training digits) and test.

    Args:
        val_split: digits for validation.
        normalize: by a mean and a deviation of 0.5.
        seed: kept as an attribute; the digits are always split in the same way.
        batch_size: digits in a batch; a shorter last one is left out.
    """

    name = "mnist"
    num_classes = 10

    def __init__(
        self,
        data_dir: str = _FOLDER,
        val_split: int = 5000,
        num_workers: int = 16,
        normalize: bool = False,
        seed: int = 42,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        self.data_dir, self.val_split, self.num_workers = data_dir, val_split, num_workers
        self.normalize, self.seed, self.batch_size = normalize, seed, batch_size

    def prepare_data(self) -> None:
        """Fetch both parts."""
        MNIST(self.data_dir, train=True, download=True)
        MNIST(self.data_dir, train=False, download=True)

    def setup(self, stage: str) -> None:
        """Split the training digits."""
        whole: Any = self._part(train=True)
        sizes = [len(whole) - self.val_split, self.val_split]
        self.dataset_train, self.dataset_val = random_split(
            whole, sizes, torch.Generator().manual_seed(42)
        )

    def train_dataloader(self) -> Any:
        """The training digits, shuffled."""
        return self._loader(self.dataset_train, shuffle=True)

    def val_dataloader(self) -> Any:
        """The digits for validation."""
        return self._loader(self.dataset_val)

    def test_dataloader(self) -> Any:
        """The test digits."""
        return self._loader(self._part(train=False))

    @property
    def default_transforms(self) -> Callable[[Any], Any] | None:
        """The transforms of torchvision; None without torchvision."""
        if find_spec("torchvision") is None:
            return None
        transforms = import_module("torchvision.transforms")

        as_tensor = transforms.ToTensor()
        if not self.normalize:
            return as_tensor  # type: ignore[no-any-return]
        return transforms.Compose([as_tensor, transforms.Normalize(mean=(0.5,), std=(0.5,))])  # type: ignore[no-any-return]

    def _part(self, *, train: bool) -> Dataset[Any]:
        transform = self.default_transforms
        return MNIST(
            self.data_dir,
            train=train,
            download=False,
            **({"transform": transform} if transform else {}),
        )

    def _loader(self, dataset: Dataset[Any], *, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            drop_last=True,
            pin_memory=True,
        )
