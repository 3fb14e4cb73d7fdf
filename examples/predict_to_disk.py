"""Writes predictions to disk, each rank its own share, and checks that every sample is there once.

python examples/predict_to_disk.py
python examples/predict_to_disk.py --strategy ddp --devices 2 --accelerator cpu
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.callbacks import BasePredictionWriter


class DigitReader(Module):
    """Two linear layers over the 64 pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, digits = batch
        loss = F.cross_entropy(self.layers(images), digits)
        self.log("loss", loss, prog_bar=True)
        return loss

    def predict_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, _ = batch
        return self.layers(images).softmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class NumPyWriter(BasePredictionWriter):
    """Writes a file for each batch: probabilities, and which samples of the data set they belong
    to.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder

    def setup(self, trainer: Trainer, module: Module, stage: str) -> None:
        # Each process of `ddp` has run this script, and has made a folder; rank 0's is the one to
        # use.
        self.folder = trainer.strategy.broadcast(self.folder)

    def write_on_batch_end(
        self,
        trainer: Trainer,
        module: Module,
        prediction: Tensor,
        batch_indices: Sequence[int],
        batch: tuple[Tensor, Tensor],
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        path = self.folder / f"rank{trainer.global_rank}-batch{batch_idx:04}.npz"
        np.savez(path, indices=batch_indices, probabilities=prediction.float().cpu().numpy())

    def on_predict_end(self, trainer: Trainer, module: Module) -> None:
        trainer.strategy.barrier()  # afterwards, the files of all ranks are there


def collect(folder: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Indices and probabilities of all files, in the order of the data set, and the number of
    files.
    """
    files = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    indices = np.concatenate([file["indices"] for file in files])
    probabilities = np.concatenate([file["probabilities"] for file in files])
    order = indices.argsort()
    return indices[order], probabilities[order], len(files)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write predictions of handwritten digits to disk.")
    parser.add_argument(
        "--strategy",
        default="auto",
        help="an alias of `core list-strategies` (default: %(default)s)",
    )
    parser.add_argument(
        "--devices", default="auto", help="how many, or which: 2, 0,1, -1 (default: %(default)s)"
    )
    parser.add_argument(
        "--accelerator", default="auto", help="cpu, cuda, mps, ... (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", default="32-true", help="such as bf16-mixed (default: %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=5, help="passes over the data (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            strategy=arguments.strategy,
            devices=arguments.devices,
            accelerator=arguments.accelerator,
            precision=arguments.precision,
            max_epochs=arguments.epochs,
            callbacks=NumPyWriter(Path(folder)),
            logger=False,
            enable_checkpointing=False,
        )
        images, digits = load_digits(return_X_y=True)
        data = TensorDataset(torch.as_tensor(images).float() / 16, torch.as_tensor(digits))
        module = DigitReader()
        trainer.fit(module, DataLoader(data, batch_size=64, shuffle=True))
        trainer.predict(module, DataLoader(data, batch_size=64), return_predictions=False)

        if trainer.is_global_zero:
            indices, probabilities, num_files = collect(Path(folder))
            each_is_there_once = np.array_equal(indices, np.arange(len(data)))
            trainer.print(
                f"{num_files} files with {len(indices)} predictions; each sample once: "
                f"{each_is_there_once}"
            )
            trainer.print(
                f"{np.mean(probabilities.argmax(axis=1) == digits):.1%} of them are right"
            )


if __name__ == "__main__":
    main()
