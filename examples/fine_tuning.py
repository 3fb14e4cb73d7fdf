"""Pretrains a small CNN on the digits 0 to 4, and fine-tunes it on a hundred images of 5 to 9.

python examples/fine_tuning.py
python examples/fine_tuning.py --strategy ddp --devices 2 --accelerator cpu

The first layer stays as it was pretrained, the second one learns slowly, the new head fast: the
discriminative learning rates of Howard and Ruder, 2018.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer

NUM_FINE_TUNING_IMAGES = 100


class Reader(Module):
    """Two convolutions and a head that distinguishes five digits, over images of shape (batch, 1,
    8, 8).
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 32, kernel_size=3, padding=1), nn.ReLU())
        self.second = nn.Sequential(
            nn.Conv2d(32, 64, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4 * 4, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images)))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, digits = batch
        loss = F.cross_entropy(self(images), digits)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, digits = batch
        self.log("accuracy", (self(images).argmax(dim=1) == digits).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class FineTunedReader(Reader):
    """A reader's layers with a new head."""

    def __init__(self, pretrained: Reader) -> None:
        super().__init__()
        self.first, self.second = pretrained.first, pretrained.second
        self.first.requires_grad_(False)

    def configure_optimizers(self) -> dict[str, object]:
        groups = [
            {"params": self.second.parameters(), "name": "second"},
            {"params": self.head.parameters(), "name": "head"},
        ]
        optimizer = torch.optim.AdamW(groups)
        num_steps = self.trainer.estimated_stepping_batches
        scheduler = OneCycleLR(optimizer, max_lr=[3e-4, 1e-2], total_steps=num_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def load_data(first: int, num_seen: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Images of five digits from `first` on: some to train on, and others that training never
    sees.
    """
    images, digits = load_digits(return_X_y=True)
    chosen = (digits >= first) & (digits < first + 5)
    images, digits = images[chosen] / 16, digits[chosen] - first
    parts = train_test_split(
        images, digits, test_size=0.3, train_size=num_seen, stratify=digits, random_state=0
    )
    seen, unseen, seen_digits, unseen_digits = (torch.as_tensor(part) for part in parts)
    return (
        TensorDataset(seen.float().reshape(-1, 1, 8, 8), seen_digits),
        TensorDataset(unseen.float().reshape(-1, 1, 8, 8), unseen_digits),
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fine-tune a reader of some digits on others.")
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
        default=5,
        help="of pretraining; thrice to tune (default: %(default)s)",
    )
    return parser.parse_args()


def make_trainer(arguments: argparse.Namespace, max_epochs: int) -> Trainer:
    return Trainer(
        strategy=arguments.strategy,
        devices=arguments.devices,
        accelerator=arguments.accelerator,
        precision=arguments.precision,
        max_epochs=max_epochs,
        logger=False,
        enable_checkpointing=False,
    )


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    seen, unseen = load_data(first=0)
    pretrained = Reader()
    make_trainer(arguments, arguments.epochs).fit(
        pretrained,
        DataLoader(seen, batch_size=32, shuffle=True),
        DataLoader(unseen, batch_size=128),
    )

    seen, unseen = load_data(first=5, num_seen=NUM_FINE_TUNING_IMAGES)
    train_loader, unseen_loader = (
        DataLoader(seen, batch_size=10, shuffle=True),
        DataLoader(unseen, batch_size=128),
    )
    module = FineTunedReader(pretrained)
    frozen = [parameter.detach().cpu().clone() for parameter in module.first.parameters()]
    trainer = make_trainer(arguments, 3 * arguments.epochs)
    [before] = trainer.validate(module, unseen_loader)
    trainer.fit(module, train_loader, unseen_loader)
    [after] = trainer.validate(module, unseen_loader)

    trainer.print(
        f"Accuracy on 5 to 9: {before['accuracy']:.1%} before fine-tuning, {after['accuracy']:.1%} "
        "after"
    )
    is_unchanged = all(
        map(torch.equal, frozen, (parameter.cpu() for parameter in module.first.parameters()))
    )
    trainer.print(f"The frozen layer is as it was: {is_unchanged}")


if __name__ == "__main__":
    main()
