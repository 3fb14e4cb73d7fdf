"""Trains on a few labeled digits and many unlabeled ones, each kind from a loader of its own.

python examples/several_loaders.py
python examples/several_loaders.py --strategy ddp --devices 2 --accelerator cpu
python examples/several_loaders.py --weight 0  # for comparison: the labeled digits alone

The model has to say the same of an image and of the image moved by a pixel, which needs no label:
consistency regularization, in the form of FixMatch (Sohn et al., 2020).
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core import CombinedLoader, Module, Trainer

NUM_LABELED = 50
SURE = 0.9


class SemiSupervisedReader(Module):
    """A small CNN over images of shape (batch, 1, 8, 8)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def training_step(self, batch: dict[str, list[Tensor]]) -> Tensor:
        images, digits = batch["labeled"]
        [unlabeled] = batch["unlabeled"]
        supervised = F.cross_entropy(self.layers(move(images)), digits)
        consistency = self.consistency_loss(unlabeled)
        self.log_dict({"supervised": supervised, "consistency": consistency}, prog_bar=True)
        return supervised + self.weight * consistency

    def consistency_loss(self, images: Tensor) -> Tensor:
        """The loss of answers for moved images against those that the model is sure of for the
        images themselves.
        """
        with torch.no_grad():
            certainty, answer = self.layers(images).softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(self.layers(move(images)), answer, reduction="none")
        return (losses * (certainty > SURE)).mean()

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, digits = batch
        self.log(
            "accuracy", (self.layers(images).argmax(dim=1) == digits).float().mean(), prog_bar=True
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def move(images: Tensor) -> Tensor:
    """Each image by up to a pixel to any side."""
    padded = F.pad(images, (1, 1, 1, 1))
    corners = torch.randint(3, (len(images), 2, 1), device=images.device)
    rows, columns = (corners + torch.arange(8, device=images.device)).unbind(dim=1)
    samples = torch.arange(len(images), device=images.device)
    return padded[samples[:, None, None], 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def load_data() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Labeled and unlabeled digits to train on, and others that training never sees."""
    images, digits = load_digits(return_X_y=True)
    images = torch.as_tensor(images).float().reshape(-1, 1, 8, 8) / 16
    seen, unseen = train_test_split(
        range(len(digits)), test_size=0.2, stratify=digits, random_state=0
    )
    labeled, unlabeled = train_test_split(
        seen, train_size=NUM_LABELED, stratify=digits[seen], random_state=0
    )
    digits = torch.as_tensor(digits)
    return (
        TensorDataset(images[labeled], digits[labeled]),
        TensorDataset(images[unlabeled]),
        TensorDataset(images[unseen], digits[unseen]),
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train on labeled and unlabeled handwritten digits."
    )
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
        "--epochs",
        type=int,
        default=30,
        help="passes over the unlabeled data (default: %(default)s)",
    )
    parser.add_argument(
        "--weight", type=float, default=1.0, help="of the consistency loss (default: %(default)s)"
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
    labeled, unlabeled, unseen = load_data()
    loaders = {
        "labeled": DataLoader(labeled, batch_size=10, shuffle=True),
        "unlabeled": DataLoader(unlabeled, batch_size=64, shuffle=True),
    }
    # The labeled digits begin again until the unlabeled ones have all been seen.
    train_loader = CombinedLoader(loaders, mode="max_size_cycle")

    module = SemiSupervisedReader(arguments.weight)
    trainer.fit(module, train_loader, DataLoader(unseen, batch_size=128))
    [metrics] = trainer.validate(module, DataLoader(unseen, batch_size=128))
    trainer.print(f"Accuracy with {len(labeled)} labels: {metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
