"""A small network, and a way to train it on simulated IPUs or on another device, with all that can
be compared.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer

QUIET = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
)
GLOBAL_BATCH_SIZE = 8
ADAMW = torch.optim.AdamW


class Net(Module):
    """Logs its loss in both ways, and changes its learning rate from epoch to epoch."""

    def __init__(self, kind=ADAMW, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        self.kind, self.options = kind, {"lr": 0.02, **options}
        self.num_traces = 0

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch):
        self.num_traces += 1
        loss = functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("samples", float(len(batch[0])), reduce_fx="sum", on_step=False, on_epoch=True)
        return {"loss": loss, "size": batch[0].sum(1)}

    def validation_step(self, batch):
        self.log("error", functional.mse_loss(self(batch[0]), batch[1]))

    def predict_step(self, batch):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = self.kind(self.parameters(), **self.options)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Records(Callback):
    """The result of a run: losses, learning rates, and the optimizer's state."""

    def __init__(self):
        self.losses, self.rates, self.state = [], [], {}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        self.rates.append(trainer.strategy.optimizers[0].param_groups[0]["lr"])

    def on_train_end(self, trainer, module):
        self.state = trainer.strategy.get_optimizer_state_dict(trainer.strategy.optimizers[0])


def make_data(num_samples):
    inputs = torch.randn(num_samples, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, torch.stack([inputs.sum(1).sin(), inputs.prod(1)], dim=1))


def train(*, batch_size=GLOBAL_BATCH_SIZE, num_batches=10, module=None, **options):
    """Two epochs of so many steps of eight samples. Returns trainer, module and `Records`."""
    module, records = module or Net(), Records()
    data = make_data(num_batches * GLOBAL_BATCH_SIZE)
    trainer = Trainer(**{"max_epochs": 2, "callbacks": [records], **QUIET, **options})
    torch.manual_seed(3)
    loaders = (
        DataLoader(data, batch_size=batch_size, shuffle=True),
        DataLoader(data, batch_size=7),
    )
    trainer.fit(module, *loaders)
    return trainer, module, records


def assert_same(found, expected, tolerance=2e-6):
    """Weights, epoch values, learning rates at the end, steps and the optimizer's state of two
    runs.
    """
    (trainer, module, records), (other, wanted, wanted_records) = found, expected
    assert trainer.global_step == other.global_step
    assert records.rates[-1] == wanted_records.rates[-1]
    torch.testing.assert_close(
        module.state_dict(), wanted.state_dict(), atol=tolerance, rtol=tolerance
    )
    if len(records.losses) == len(wanted_records.losses):
        torch.testing.assert_close(records.losses, wanted_records.losses, atol=1e-5, rtol=1e-5)
    for name in ("loss_epoch", "error"):
        assert (
            abs(trainer.callback_metrics[name] - other.callback_metrics[name]) < 10 * tolerance
        ), name
    state, wanted_state = records.state["state"], wanted_records.state["state"]
    assert sorted(state) == sorted(wanted_state)
    for name, entry in wanted_state.items():
        torch.testing.assert_close(state[name], entry, atol=1e-5, rtol=1e-3)
