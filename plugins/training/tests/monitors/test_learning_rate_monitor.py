import csv
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from core import ConfigurationError
from core.callbacks import LearningRateMonitor
from support.tiny import Tiny, loader, make_trainer

# The tiny module can validate; most tests here have no need to.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)


class Scheduled(Tiny):
    """Halves its learning rate each step, or each epoch."""

    def __init__(self, interval, name=None):
        super().__init__(lr=1.0)
        self.interval, self.name = interval, name

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
        scheduler = {
            "scheduler": StepLR(optimizer, 1, 0.5),
            "interval": self.interval,
            "name": self.name,
        }
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def rows(trainer, column):
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        return [
            (int(row["step"]), float(row[column]))
            for row in csv.DictReader(file)
            if row.get(column)
        ]


def fit(root, monitor, module, **options):
    trainer = make_trainer(
        root, monitor, logger=True, **{"max_epochs": 2, "log_every_n_steps": 1, **options}
    )
    trainer.fit(module, loader())
    return trainer


EACH_STEP, EACH_EPOCH = [(1, 1.0), (2, 0.5), (3, 0.25), (4, 0.125)], [(0, 1.0), (4, 0.5)]


@pytest.mark.parametrize(
    ("given", "interval", "options", "logged"),
    [
        ("step", "step", {"max_epochs": 1}, EACH_STEP),  # under the step that used it
        ("step", "step", {"max_epochs": 1, "log_every_n_steps": 2}, [(2, 0.5), (4, 0.125)]),
        ("step", "step", {"max_epochs": 1, "accumulate_grad_batches": 2}, [(1, 1.0), (2, 0.5)]),
        (None, "step", {"max_epochs": 1}, EACH_STEP),
        ("epoch", "epoch", {}, EACH_EPOCH),
        (None, "epoch", {}, EACH_EPOCH),
    ],
)
def test_rates_are_logged_by_step_or_epoch(tmp_path, given, interval, options, logged):
    trainer = fit(tmp_path, LearningRateMonitor(given), Scheduled(interval), **options)
    assert rows(trainer, "lr-SGD") == logged
    assert trainer.callback_metrics["lr-SGD"] == logged[-1][1]


def test_a_later_fit_logs_its_own_steps(tmp_path):
    monitor, options = LearningRateMonitor("step"), {"max_epochs": 1, "log_every_n_steps": 4}
    for name in ("a", "b"):
        trainer = fit(tmp_path / name, monitor, Scheduled("step"), **options)
    assert rows(trainer, "lr-SGD") == [(4, 0.125)]


def test_the_name_of_the_scheduler_momentum_and_weight_decay(tmp_path):
    monitor = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    trainer = fit(tmp_path, monitor, Scheduled("epoch", name="mine"), max_epochs=1)
    assert rows(trainer, "mine") == [(0, 1.0)]
    assert rows(trainer, "mine-momentum") == [(0, 0.9)]
    assert rows(trainer, "mine-weight_decay") == [(0, 0.1)]


def test_groups_and_several_optimizers(tmp_path):
    class Several(Tiny):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(self(batch[0]).square().mean())
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self):
            first = torch.optim.Adam(
                [{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.5}], lr=0.25
            )
            second = torch.optim.Adam([{"params": [self.layer.bias], "name": "bias"}], lr=0.125)
            return [first, second]

    monitor = LearningRateMonitor("epoch", log_momentum=True)
    trainer = fit(tmp_path, monitor, Several(), max_epochs=1)
    assert rows(trainer, "lr-Adam-0/pg1") == [(0, 0.25)]
    assert rows(trainer, "lr-Adam-0/pg2") == [(0, 0.5)]
    assert rows(trainer, "lr-Adam-1/bias") == [(0, 0.125)]
    assert rows(trainer, "lr-Adam-1-momentum/bias") == [(0, 0.9)]


def test_it_needs_a_logger_and_an_interval(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"LearningRateMonitor has nowhere to log to.*Trainer\(logger=True\)",
    ):
        make_trainer(tmp_path, LearningRateMonitor(), max_epochs=1).fit(Tiny(), loader())
    with pytest.raises(
        ConfigurationError, match=r"logging_interval='batch'\): expected 'step' or 'epoch' or None"
    ):
        LearningRateMonitor("batch")
