"""Trains a generator and a discriminator on scikit-learn's handwritten digits, by manual
optimization.

python examples/gan.py
python examples/gan.py --strategy ddp --devices 2 --accelerator cpu

After Goodfellow et al., 2014, with the loss that doesn't saturate. The Fréchet distance (Heusel et
al., 2017; here between pixels instead of a network's features) measures how far the drawn images
are from the real ones.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class GAN(Module):
    """Images are of shape (batch, 64), from -1 (paper) to 1 (ink)."""

    def __init__(self, noise_size: int = 32) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.noise_size = noise_size
        self.generator = nn.Sequential(
            nn.Linear(noise_size, 128),
            nn.LeakyReLU(0.2),
            nn.Linear(128, 256),
            nn.LeakyReLU(0.2),
            nn.Linear(256, 64),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(64, 256),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(256, 128),
            nn.LeakyReLU(0.2),
            nn.Linear(128, 1),
        )

    def draw(self, num_images: int) -> Tensor:
        """Images of nothing but noise."""
        return self.generator(torch.randn(num_images, self.noise_size, device=self.device))

    def on_fit_start(self) -> None:
        torch.manual_seed(self.global_rank)  # each rank draws noise of its own

    def training_step(self, batch: tuple[Tensor]) -> None:
        [real] = batch
        for_generator, for_discriminator = self.optimizers()

        with self.toggled_optimizer(for_discriminator):
            drawn = self.draw(len(real)).detach()
            # Real images count 0.9 (one-sided label smoothing), so that the discriminator doesn't
            # get too sure.
            loss = is_real_loss(self.discriminator(real), 0.9) + is_real_loss(
                self.discriminator(drawn), 0.0
            )
            self.log("discriminator", loss, prog_bar=True)
            for_discriminator.zero_grad()
            self.manual_backward(loss)
            for_discriminator.step()

        with self.toggled_optimizer(for_generator):
            loss = is_real_loss(self.discriminator(self.draw(len(real))), 1.0)
            self.log("generator", loss, prog_bar=True)
            for_generator.zero_grad()
            self.manual_backward(loss)
            for_generator.step()

    def validation_step(self, batch: tuple[Tensor]) -> None:
        [real] = batch
        self.log("distance", frechet_distance(real, self.draw(len(real))), prog_bar=True)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999)),
        ]


def is_real_loss(logits: Tensor, target: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


def frechet_distance(first: Tensor, second: Tensor) -> Tensor:
    """Between the normal distributions that have the means and covariances of two sets of shape
    (samples, features).
    """
    first, second = first.double(), second.double()
    first_covariance, second_covariance = first.T.cov(), second.T.cov()
    # The trace of the product's square root, by its eigenvalues: real and positive but for
    # rounding.
    common = (
        torch.linalg.eigvals(first_covariance @ second_covariance).real.clamp(min=0).sqrt().sum()
    )
    return (
        (first.mean(0) - second.mean(0)).square().sum()
        + (first_covariance + second_covariance).trace()
        - 2 * common
    )


def as_text(images: Tensor) -> str:
    """Images side by side, a character a pixel."""
    ink = " .:-=+*#%@"
    shades = ((images.reshape(-1, 8, 8) + 1) / 2 * (len(ink) - 1)).round().int()
    rows = shades.permute(1, 0, 2).tolist()
    return "\n".join(
        "  ".join("".join(ink[shade] for shade in part) for part in row) for row in rows
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a GAN on handwritten digits.")
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
        "--epochs", type=int, default=60, help="passes over the data (default: %(default)s)"
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
        check_val_every_n_epoch=10,
        logger=False,
        enable_checkpointing=False,
    )
    images = torch.as_tensor(load_digits().data).float() / 8 - 1
    data = TensorDataset(images)
    all_loader = DataLoader(data, batch_size=len(data))

    module = GAN()
    [before] = trainer.validate(module, all_loader)
    trainer.fit(module, DataLoader(data, batch_size=64, shuffle=True), all_loader)
    [after] = trainer.validate(module, all_loader)
    trainer.print(
        f"Distance from the real digits: {before['distance']:.1f} before, {after['distance']:.1f} "
        "after"
    )
    module.eval()
    with torch.no_grad():
        trainer.print(as_text(module.draw(8).cpu()))


if __name__ == "__main__":
    main()
