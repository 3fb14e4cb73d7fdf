"""Trains a small CNN on scikit-learn's 1,797 handwritten digits, and prints how many unseen ones it
reads.

python examples/digits.py
python examples/digits.py --strategy ddp --devices 2 --accelerator cpu
torchrun --nproc-per-node 2 examples/digits.py --accelerator cpu
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class DigitReader(Module):
    """Two convolutions and two linear layers over images of shape (batch, 1, 8, 8)."""

    def __init__(self, num_epochs: int) -> None:
        super().__init__()
        self.num_epochs = num_epochs
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(64 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, digits = batch
        loss = F.cross_entropy(self(images), digits)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, digits = batch
        is_right = self(images).argmax(dim=1) == digits
        self.log("accuracy", is_right.float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": CosineAnnealingLR(optimizer, T_max=self.num_epochs),
        }


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Four fifths of the digits to train on, and one fifth that training never sees."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=0.2, stratify=digits, random_state=0)
    seen, unseen, seen_digits, unseen_digits = (torch.as_tensor(part) for part in parts)
    return (
        TensorDataset(seen.float().reshape(-1, 1, 8, 8), seen_digits),
        TensorDataset(unseen.float().reshape(-1, 1, 8, 8), unseen_digits),
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
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
        "--epochs", type=int, default=10, help="passes over the data (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    trainer = Trainer(
        strategy=arguments.strategy,
        devices=arguments.devices,
        accelerator=arguments.accelerator,
        precision=arguments.precision,
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
    )
    seen, unseen = load_data()
    train_loader = DataLoader(seen, batch_size=32, shuffle=True)
    unseen_loader = DataLoader(unseen, batch_size=128)

    module = DigitReader(arguments.epochs)
    trainer.fit(module, train_loader, unseen_loader)
    [metrics] = trainer.validate(module, unseen_loader)
    processes = "1 process" if trainer.world_size == 1 else f"{trainer.world_size} processes"
    trainer.print(
        f"Accuracy on {len(unseen)} digits that were not trained on: {metrics['accuracy']:.1%} "
        f"({processes})"
    )


if __name__ == "__main__":
    main()
