"""Small modules and data that the tests of the Trainer share."""

import torch

from core import Callback, Logger, Module, Trainer

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def batches(num_batches=3, batch_size=2):
    """Rows that count from 0, so that every batch differs."""
    rows = torch.arange(num_batches * batch_size * 4, dtype=torch.float32).reshape(-1, 4) / 10
    return list(rows.split(batch_size))


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class At(Callback):
    """Calls a function with the module in one hook."""

    def __init__(self, hook, function):
        setattr(self, hook, lambda trainer, module, *_: function(module))


class Recorder(Logger):
    """Keeps the rows that it gets."""

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step):
        self.rows.append((step, dict(metrics)))


def quiet_trainer(**options):
    return Trainer(**{**QUIET, **options})


def fit(module, data=None, validation=None, *, ckpt_path=None, **options):
    """One epoch of three batches, unless something else is said."""
    trainer = quiet_trainer(**{"max_epochs": 1, **options})
    trainer.fit(module, batches() if data is None else data, validation, ckpt_path=ckpt_path)
    return trainer
