"""When learning rates change: by the number of batches that have begun before."""

import re
from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(row,) for row in torch.ones(8, 4)])


def halvings(net):
    """The numbers of the batches before which the rate has changed."""
    return [
        index for index, (before, rate) in enumerate(pairwise(net.seen), 1) if rate == before / 2
    ]


BY_TWO, BY_THREE = {"interval": "step", "frequency": 2}, {"interval": "step", "frequency": 3}


@pytest.mark.parametrize(
    ("scheduler", "options", "expected"),
    [
        ({}, {"max_epochs": 3}, [4, 8]),
        ({"frequency": 2}, {"max_epochs": 5}, [8, 16]),
        ({"interval": "step"}, {}, [1, 2, 3, 4, 5, 6, 7]),
        (BY_THREE, {"max_epochs": 3}, [3, 7, 11]),
        ({"interval": "step"}, {"accumulate_grad_batches": 2}, [2, 4, 6]),
        (BY_TWO, {"accumulate_grad_batches": 2}, [2, 4, 6]),
        (BY_THREE, {"accumulate_grad_batches": 2, "max_epochs": 3}, []),
        (BY_TWO, {"accumulate_grad_batches": 3, "max_epochs": 3}, [4, 8]),
        ({}, {"max_epochs": 3, "train": DataLoader(Stream(), batch_size=2)}, [4, 8]),
    ],
)
def test_steps(lit, scheduler, options, expected):
    net = lit.scheduled(**scheduler)
    lit.fit(net, **options)
    assert halvings(net) == expected


@pytest.mark.parametrize(
    ("scheduler", "options", "expected"),
    [
        ({}, {"max_epochs": 5}, [8, 12, 16]),
        ({"frequency": 2}, {"max_epochs": 8, "check_val_every_n_epoch": 2}, [16, 24]),
        ({"strict": False}, {"max_epochs": 6, "check_val_every_n_epoch": 2}, [12, 16, 20]),
        ({"interval": "step", "monitor": "loss"}, {}, [2, 3, 4, 5, 6, 7]),
        ({"interval": "step", "strict": False}, {"val_check_interval": 2}, [3, 4, 5, 6, 7]),
        ({"monitor": "loss"}, {"max_epochs": 4}, [8, 12]),
        ({}, {"max_epochs": 4, "val_check_interval": 2}, [8, 12]),
    ],
)
def test_steps_by_a_metric(lit, scheduler, options, expected):
    net = lit.scheduled(ReduceLROnPlateau, **{"monitor": "val", **scheduler})
    lit.fit(net, **options)
    assert halvings(net) == expected


def test_a_metric_that_is_missing(lit, installed):
    error = installed("lightning.pytorch.utilities.exceptions").MisconfigurationException
    with pytest.raises(error, match="val"):
        lit.fit(
            lit.scheduled(ReduceLROnPlateau, monitor="val"), max_epochs=6, check_val_every_n_epoch=2
        )


def test_an_epoch_that_a_hook_leaves(lit):
    net = lit.scheduled()
    start = net.on_train_batch_start

    def leave(batch, batch_idx):
        start(batch, batch_idx)
        return -1 if batch_idx == 2 else None

    net.on_train_batch_start = leave
    lit.fit(net, max_epochs=3)
    assert halvings(net) == [3, 6]


def test_a_module_that_optimizes_by_hand(lit):
    net = lit.scheduled()
    net.automatic_optimization = False
    lit.fit(net)
    assert net.seen == [1.0] * 8


def test_steps_that_are_skipped(lit):
    net = lit.scheduled(interval="step")
    step = net.training_step
    net.training_step = lambda batch, batch_idx: step(batch, batch_idx) if batch_idx % 2 else None
    lit.fit(net)
    assert halvings(net) == [1, 2, 3, 4, 5, 6, 7]


def test_what_hooks_see(lit):
    class Seen(lit.Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return [optimizer], [StepLR(optimizer, 1, 0.5)]

        def on_train_batch_end(self, *_):
            self.seen.append(self.optimizers().param_groups[0]["lr"])

        on_validation_start = on_train_epoch_end = on_train_batch_end

    net = Seen()
    lit.fit(net)
    assert net.seen == [1.0] * 3 + [0.5] * 6 + [0.25] * 3


def test_a_step_of_the_modules_own(lit):
    class Own(lit.Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val"}
            return [optimizer], [plateau, {"scheduler": ExponentialLR(optimizer, 0.5), **BY_TWO}]

        def lr_scheduler_step(self, scheduler, metric):
            self.seen.append(
                (type(scheduler).__name__, metric and round(float(metric), 3), self.global_step)
            )

    net = Own()
    lit.fit(net, max_epochs=1)
    assert net.seen == [
        ("ExponentialLR", None, 2),
        ("ExponentialLR", None, 4),
        ("ReduceLROnPlateau", 0.614, 4),
    ]


def formed(lit, form):
    """A net whose optimizer and scheduler, which halves the rate, are returned in a form."""

    class Formed(lit.Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return form(optimizer, StepLR(optimizer, 1, 0.5))

    return Formed()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (lambda o, s: [o], 0),
        (lambda o, s: ([o], s), 1),
        (lambda o, s: ([o], {"scheduler": s, "monitor": "val"}), 1),
        (lambda o, s: ([o], [s]), 1),
        (lambda o, s: {"optimizer": o, "lr_scheduler": s}, 1),
        (lambda o, s: [{"optimizer": o}], 0),
    ],
)
def test_forms(lit, form, expected):
    trainer = lit.fit(formed(lit, form))
    assert (trainer.global_step, len(trainer.lr_scheduler_configs)) == (8, expected)
    assert trainer.optimizers[0].param_groups[0]["lr"] == 1 / 4**expected


@pytest.mark.parametrize(
    ("form", "rate", "said"),
    [
        (lambda o, s: ([o], {"scheduler": s, "gamma": 1}), 0.25, {"lr scheduler dict: {'gamma'}"}),
        (
            lambda o, s: {
                "optimizer": o,
                "lr_scheduler": {"scheduler": s, "gamma": 1},
                "frequency": 2,
            },
            0.25,
            {"optimizer configuration: {'frequency'}", "lr scheduler dict: {'gamma'}"},
        ),
        (
            lambda o, s: [{"optimizer": o, "scheduler": s}],
            1.0,
            {"optimizer configuration: {'scheduler'}"},
        ),
    ],
)
def test_keys_that_nothing_reads(lit, form, rate, said):
    with pytest.warns(match="Found unsupported keys") as told:
        assert lit.fit(formed(lit, form)).optimizers[0].param_groups[0]["lr"] == rate
    texts = [re.match("Found unsupported keys in the (.*})", str(each.message)) for each in told]
    assert {text[1] for text in texts if text} == said
