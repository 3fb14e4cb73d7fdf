"""Searches for settings. The figures are those of Lightning 2.6.6, on a CPU in float32."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.numbers


@pytest.fixture
def net(lit):
    """A small network, in float64."""

    class Net(lit.Plain):
        lr = 0.01

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Linear(4, 1, bias=False).double()
            torch.nn.init.constant_(self.layers.weight, 0.5)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.lr)

    return Net()


def loader(batch_size=4):
    return DataLoader(
        TensorDataset(torch.linspace(-1, 1, 256, dtype=torch.float64).view(64, 4)), batch_size
    )


CURVES = {
    "exponential": (
        {"num_training": 20},
        1,
        (20, 6.309573444801934e-08, 1.0989344288282767, 0.0002511886431509582),
    ),
    "linear": (
        {"num_training": 15, "mode": "linear", "min_lr": 1e-4, "max_lr": 0.5},
        1,
        (15, 0.06675333333333333, 0.40420422229335706, 0.3666933333333333),
    ),
    "ends with the epochs": (
        {},
        1,
        (32, 1.4454397707459274e-08, 1.3190036444826438, 7.585775750291837e-08),
    ),
    "diverges": (
        {"num_training": 30, "max_lr": 1e4},
        1,
        (27, 6.309573444801932e-08, 2041.0094411371292, 0.00025118864315095785),
    ),
    "accumulated": (
        {"num_training": 14},
        2,
        (14, 1.3894954943731376e-07, 0.522094992859084, 0.019306977288832496),
    ),
}
"""Options, batches a step; number of rates, the second one, the last loss, and the suggestion."""


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_lightnings(lit, installed, net, name):
    options, accumulate, expected = CURVES[name]
    trainer = lit.make_trainer(max_epochs=2, accumulate_grad_batches=accumulate)
    curve = installed("lightning.pytorch.tuner").Tuner(trainer).lr_find(net, loader(), **options)
    rates, losses = curve.results["lr"], curve.results["loss"]
    assert (len(rates), rates[1], losses[-1], curve.suggestion()) == pytest.approx(expected)
    assert net.lr == curve.suggestion()


def test_a_callback_searches_alike(lit, net):
    finder = lit.pl.callbacks.LearningRateFinder(num_training_steps=20)
    lit.fit(net, val=False, train=loader(), callbacks=finder)
    assert finder.optimal_lr.suggestion() == pytest.approx(CURVES["exponential"][2][-1])


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 8),
        ({"mode": "binsearch"}, 7),
        ({"mode": "binsearch", "margin": 0.5}, 4),
        ({"max_val": 6}, 6),
    ],
    ids=["power", "binsearch", "half", "limited"],
)
def test_a_size_is_reduced_by_the_margin_and_limited(lit, installed, net, options, size):
    class Data(lit.pl.LightningDataModule):
        batch_size = 2

        def train_dataloader(self):
            return loader(self.batch_size)

    data = Data()
    tuner = installed("lightning.pytorch.tuner").Tuner(lit.make_trainer(max_epochs=1))
    found = tuner.scale_batch_size(net, datamodule=data, max_trials=3, steps_per_trial=2, **options)
    assert (found, data.batch_size) == (size, size)
