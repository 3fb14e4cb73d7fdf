"""Prints what small programs for Lightning do, a line for each feature, to compare core-lightning with Lightning.

    python plugins/lightning/tests/features.py [WORD...] > theirs        # an environment with lightning==2.6.6
    core run --devices 1 --lightning plugins/lightning/tests/features.py [WORD...] > ours
    diff theirs ours                                                      # empty, but for what docs/lightning.md names

Each function trains something tiny and returns what it has seen. A word chooses the features with it in their names.
What Lightning has printed for all of them is `data/features.txt`, which `test_features.py` compares.
"""

import logging
import math
import os
import sys
import tempfile
import traceback
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks as C
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
DATA = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
FEATURES = []


def feature(function):
    FEATURES.append(function)
    return function


def new_folder():
    return tempfile.mkdtemp(dir=os.getcwd())


def load(batch_size=2, **options):
    return DataLoader(TensorDataset(DATA), batch_size=batch_size, **options)


def total(module):
    return round(math.fsum(each.detach().double().abs().sum().item() for each in module.state_dict().values()), 4)


class Net(pl.LightningModule):
    """A net with a BatchNorm, which notes in `seen` what tests ask for."""

    def __init__(self, lr=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.lr, self.seen = lr, []

    def forward(self, x):
        return self.layers(x)

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
        return torch.optim.SGD(self.parameters(), self.lr)


class Plain(Net):
    """The same without a BatchNorm."""

    def __init__(self, lr=0.1):
        super().__init__(lr)
        self.layers = nn.Linear(4, 1)


def fit(net, val=True, ckpt_path=None, train=None, **options):
    trainer = pl.Trainer(**{"max_epochs": 2, **QUIET, **options})
    torch.manual_seed(1)
    trainer.fit(net, train or load(), load() if val is True else val or None, ckpt_path=ckpt_path)
    return trainer


def scheduled(make, **options):
    """The rates that a scheduler leads to, a batch a number."""

    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **options}}

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(round(self.optimizers().param_groups[0]["lr"], 6))

        def validation_step(self, batch, batch_idx):
            self.log("val", 1.0)

        def training_step(self, batch, batch_idx):
            self.log("loss", 1.0)
            return 0 * self.loss(batch)

    return Scheduled()


# averages -----------------------------------------------------------------------------------------------------------


def averaged(net, **options):
    start = options.pop("start", 2)
    given = {"swa_lrs": 0.02, "swa_epoch_start": start, "annealing_epochs": 2, **options.pop("swa", {})}
    trainer = fit(net, callbacks=[C.StochasticWeightAveraging(**given)], **{"max_epochs": 5, **options})
    return trainer.current_epoch, trainer.global_step, trainer.max_epochs, total(net), net.seen


@feature
def swa_from_an_epoch():
    return averaged(Plain())


@feature
def swa_from_a_fraction():
    return averaged(Plain(), start=0.5)


@feature
def swa_from_the_default():
    return averaged(Plain(), start=0.8, max_epochs=10)


@feature
def swa_from_a_fraction_of_nothing():
    return averaged(Plain(), start=0.0)


@feature
def swa_from_the_last_epoch():
    return averaged(Plain(), start=5)


@feature
def swa_linear():
    return averaged(Plain(), swa={"annealing_strategy": "linear"})


@feature
def swa_with_avg_fn():
    return averaged(Plain(), swa={"avg_fn": lambda average, weight, num: (average + weight) / 2})


@feature
def swa_with_batchnorm():
    return averaged(Net())


@feature
def swa_with_batchnorm_and_accumulation():
    return averaged(Net(), accumulate_grad_batches=2)


@feature
def swa_with_batchnorm_and_hooks():
    class Hooked(Net):
        def on_train_epoch_start(self):
            self.seen.append(f"epoch {self.current_epoch}")

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append((batch_idx, self.global_step))

        def on_before_backward(self, loss):
            self.seen.append("backward")

        def on_before_optimizer_step(self, optimizer):
            self.seen.append("step")

        def on_before_zero_grad(self, optimizer):
            pass

        def on_train_end(self):
            self.seen.append(f"end {self.current_epoch} {self.global_step}")

    return averaged(Hooked(), max_epochs=2, start=1)


@feature
def swa_with_schedulers():
    class Scheduled(Plain):
        def on_train_epoch_start(self):
            schedulers = self.lr_schedulers()
            self.seen.append((type(schedulers).__name__, round(self.optimizers().param_groups[0]["lr"], 6)))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            return [optimizer], [StepLR(optimizer, 1, 0.9)]

    return averaged(Scheduled()), averaged(Scheduled(), start=0.9)


@feature
def swa_with_groups():
    class Groups(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD([{"params": [self.layers.weight]}, {"params": [self.layers.bias], "lr": 0.05}], 0.1)

    return averaged(Groups(), swa={"swa_lrs": [0.02, 0.03]})


@feature
def swa_that_validates():
    class Validated(Plain):
        def on_validation_end(self):
            self.seen.append(round(float(self.trainer.callback_metrics["val"]), 5))

    return averaged(Validated())


@feature
def swa_refuses():
    found = []
    for options in (
        {"swa_lrs": 0.1, "swa_epoch_start": 0},
        {"swa_lrs": 0.1, "swa_epoch_start": 1.5},
        {"swa_lrs": -1.0},
    ):
        try:
            C.StochasticWeightAveraging(**options)
            found.append("taken")
        except Exception as error:
            found.append(type(error).__name__ in ("MisconfigurationException", "ConfigurationError"))
    return found


# modes --------------------------------------------------------------------------------------------------------------


@feature
def modes_hooks_are_called():
    class Modes(Net):
        def on_validation_model_eval(self):
            self.seen.append("eval")
            super().on_validation_model_eval()

        def on_validation_model_train(self):
            self.seen.append("train")
            super().on_validation_model_train()

        def on_validation_start(self):
            self.seen.append(("start", self.training))

        def on_validation_end(self):
            self.seen.append(("end", self.training))

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(self.training)

    net = Modes()
    fit(net)
    return net.seen


@feature
def modes_frozen_batchnorm():
    class Frozen(Net):
        def on_validation_model_train(self):
            self.train()
            self.layers[1].eval()

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(self.layers[1].training)

    net = Frozen()
    fit(net, num_sanity_val_steps=1)
    return net.seen, total(net)


@feature
def modes_own_eval():
    class Own(Net):
        def on_validation_model_eval(self):
            self.layers[0].eval()

        def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0):
            self.seen.append([each.training for each in self.layers])

    net = Own()
    fit(net)
    return net.seen[0], total(net)


@feature
def modes_test_and_predict():
    class Modes(Net):
        def on_test_model_eval(self):
            self.seen.append("test eval")
            super().on_test_model_eval()

        def on_test_model_train(self):
            self.seen.append("test train")
            super().on_test_model_train()

        def on_predict_model_eval(self):
            self.seen.append("predict eval")
            super().on_predict_model_eval()

    net = Modes()
    trainer = pl.Trainer(**QUIET)
    trainer.test(net, load(), verbose=False)
    trainer.predict(net, load())
    return net.seen, net.training


@feature
def modes_zero_grad_before_validation():
    class Zero(Net):
        def on_validation_model_zero_grad(self):
            self.seen.append("zero")
            super().on_validation_model_zero_grad()

    net = Zero()
    fit(net)
    return net.seen


@feature
def modes_callbacks_around():
    seen = []

    class Seen(pl.Callback):
        def on_validation_start(self, trainer, module):
            seen.append(("start", module.training))

        def on_validation_end(self, trainer, module):
            seen.append(("end", module.training))

        def on_train_epoch_end(self, trainer, module):
            seen.append(("epoch", module.training))

    fit(Net(), callbacks=[Seen()])
    return seen


@feature
def modes_eval_before_fit():
    net = Net()
    net.layers[1].eval()
    fit(net)
    return [each.training for each in net.layers], total(net)


def line_of(function):
    try:
        said = function()
    except BaseException as error:
        said = f"!! {type(error).__name__}: {' '.join(str(error).split())[:150]}"
        if "PRINT_ERRORS" in os.environ:
            traceback.print_exc()
    return f"{function.__name__}: {said}"


def main(words):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.chdir(tempfile.mkdtemp())
    chosen = [each for each in FEATURES if not words or any(word in each.__name__ for word in words)]
    for each in chosen:
        print(line_of(each), flush=True)
    print(f"{len(chosen)} features", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
