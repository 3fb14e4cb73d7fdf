"""Small nets for Lightning, and short ways to train them."""

import contextlib
import io
import math

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

QUIET = {
    "logger": False,
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}
# alike on every processor
DATA = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * 64).round() / 64


def load(batch_size=2):
    return DataLoader(TensorDataset(DATA), batch_size=batch_size)


class Net(pl.LightningModule):
    """A net with a BatchNorm, which notes in `seen` what tests ask for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        # In float64: the norm of two samples makes much of the last bit, which differs between
        # processors.
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
        self.seen = []

    def forward(self, x):
        return self.layers(x.to(next(self.parameters()).dtype))

    def loss(self, batch):
        return (self(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.loss(batch))

    def test_step(self, batch, batch_idx):
        self.log("test", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Plain(Net):
    """The same with a linear layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 1)


class Rising(Plain):
    """A validation that gets worse with each run."""

    def on_validation_start(self):
        self.seen.append(self.global_step)

    def validation_step(self, batch, batch_idx):
        self.log("val", float(len(self.seen)))

    def training_step(self, batch, batch_idx):
        self.log("rising", float(self.global_step))
        return super().training_step(batch, batch_idx)


def scheduled(kind=StepLR, **options):
    """A net that learns nothing, with a scheduler that halves the rate when it steps; `options` say
    more of it.
    """

    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            arguments = (
                {"step_size": 1, "gamma": 0.5} if kind is StepLR else {"factor": 0.5, "patience": 0}
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": kind(optimizer, **arguments), **options},
            }

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(self.optimizers().param_groups[0]["lr"])

        def validation_step(self, batch, batch_idx):
            self.log("val", 1.0)

        def training_step(self, batch, batch_idx):
            self.log("loss", 1.0)
            return 0 * self.loss(batch)

    return Scheduled()


class Kept(Logger):
    """A logger that keeps what it gets."""

    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, rounded(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def make_trainer(**options):
    return pl.Trainer(**{**QUIET, **options})


def fit(net, val=True, train=None, ckpt_path=None, **options):
    """Four batches an epoch, two epochs unless options say otherwise."""
    trainer = make_trainer(**{"max_epochs": 2, "limit_val_batches": None if val else 0, **options})
    torch.manual_seed(1)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.fit(
            net, load() if train is None else train, load() if val else None, ckpt_path=ckpt_path
        )
    return trainer


def rounded(metrics):
    return {name: round(float(value), 4) for name, value in metrics.items()}


def total(module):
    return round(
        math.fsum(
            each.detach().double().abs().sum().item() for each in module.state_dict().values()
        ),
        4,
    )
