import pytest
import torch
from torch.optim.lr_scheduler import StepLR

pytestmark = pytest.mark.numbers


def averaged(lit, net, max_epochs=5, accumulate_grad_batches=1, **options):
    given = {"swa_lrs": 0.02, "swa_epoch_start": 2, "annealing_epochs": 2, **options}
    average = lit.pl.callbacks.StochasticWeightAveraging(**given)
    trainer = lit.fit(
        net,
        callbacks=[average],
        max_epochs=max_epochs,
        accumulate_grad_batches=accumulate_grad_batches,
    )
    return trainer.current_epoch, trainer.global_step, lit.total(net)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 3.274),
        ({"swa_epoch_start": 0.5}, 3.274),
        ({"swa_epoch_start": 0.0}, 2.5114),
        ({"swa_epoch_start": 5}, 3.8828),
        ({"annealing_strategy": "linear"}, 3.274),
        ({"avg_fn": lambda average, weight, num: (average + weight) / 2}, 3.4373),
    ],
)
def test_weights(lit, options, total):
    assert averaged(lit, lit.Plain(), **options) == (5, 20, total)


@pytest.mark.parametrize(("batches", "expected"), [(1, (6, 21, 26.3191)), (2, (6, 11, 15.077))])
def test_an_epoch_more_for_batchnorm(lit, batches, expected):
    assert averaged(lit, lit.Net(), accumulate_grad_batches=batches) == expected


def test_hooks_of_the_epoch_for_batchnorm(lit):
    class Hooked(lit.Net):
        def on_train_epoch_start(self):
            self.seen.append(f"epoch {self.current_epoch}")

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(f"{batch_idx} {self.global_step}")

        def on_before_backward(self, loss):
            self.seen.append("backward")

        def on_before_optimizer_step(self, optimizer):
            self.seen.append("step")

        def on_train_end(self):
            self.seen.append(f"end {self.current_epoch} {self.global_step}")

    net = Hooked()
    assert averaged(lit, net, max_epochs=2, swa_epoch_start=1) == (3, 9, 16.9407)
    assert ", ".join(net.seen[13:]) == (
        "epoch 1, 0 4, backward, step, 1 5, backward, step, 2 6, backward, step, 3 7, backward, "
        "step, epoch 2, 0 8, 1 8, 2 8, 3 8, step, end 3 9"
    )


def test_the_modules_scheduler_is_replaced(lit):
    class Scheduled(lit.Plain):
        def on_train_epoch_start(self):
            rate = round(self.optimizers().param_groups[0]["lr"], 6)
            self.seen.append(f"{type(self.lr_schedulers()).__name__} {rate}")

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            return [optimizer], [StepLR(optimizer, 1, 0.9)]

    net = Scheduled()
    assert averaged(lit, net, swa_epoch_start=0.9) == (5, 20, 3.6812)
    assert (
        ", ".join(net.seen) == "StepLR 0.1, StepLR 0.09, StepLR 0.081, SWALR 0.0729, SWALR 0.04645"
    )


def test_a_rate_for_each_group(lit):
    class Groups(lit.Plain):
        def configure_optimizers(self):
            return torch.optim.SGD(
                [{"params": [self.layers.weight]}, {"params": [self.layers.bias], "lr": 0.05}], 0.1
            )

    for rates in ([0.02, 0.03], (0.02, 0.03)):
        assert averaged(lit, Groups(), swa_lrs=rates) == (5, 20, 3.224)


def test_validation_is_of_the_weights_that_are_trained(lit):
    class Validated(lit.Plain):
        def on_validation_end(self):
            self.seen.append(round(float(self.trainer.callback_metrics["val"]), 5))

    net = Validated()
    averaged(lit, net)
    assert net.seen == [0.61392, 0.13545, 0.06126, 0.04851, 0.03848]


@pytest.mark.parametrize(
    "options", [{"swa_epoch_start": 0}, {"swa_epoch_start": 1.5}, {"swa_lrs": -1.0}]
)
def test_refused(lit, installed, options):
    error = installed("lightning.pytorch.utilities.exceptions").MisconfigurationException
    with pytest.raises(error):
        lit.pl.callbacks.StochasticWeightAveraging(**{"swa_lrs": 0.1, **options})
