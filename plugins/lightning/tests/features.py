"""Prints what small programs for Lightning do, a line for each feature, to compare core-lightning with Lightning.

    python plugins/lightning/tests/features.py [WORD...] > theirs        # an environment with lightning==2.6.6
    core run --devices 1 --lightning plugins/lightning/tests/features.py [WORD...] > ours
    diff theirs ours                                                      # empty, but for what docs/lightning.md names

Each function trains something tiny and returns what it has seen. A word chooses the features with it in their names.
What Lightning has printed for all of them is `data/features.txt`, which `test_features.py` compares.
"""

import contextlib
import io
import logging
import math
import os
import sys
import tempfile
import traceback
import warnings

import lightning as L
import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks as C
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR
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
DATA = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * 64).round() / 64  # alike on every processor
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
        # In float64: the norm of two samples makes much of the last bit, which differs between processors.
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
        self.lr, self.seen = lr, []

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
        return torch.optim.SGD(self.parameters(), self.lr)


class Plain(Net):
    """The same without a BatchNorm."""

    def __init__(self, lr=0.1):
        super().__init__(lr)
        self.layers = nn.Linear(4, 1)


def fit(net, val=True, ckpt_path=None, train=None, **options):
    trainer = pl.Trainer(**{"max_epochs": 2, **QUIET, **options})
    torch.manual_seed(1)
    trainer.fit(net, load() if train is None else train, load() if val is True else val or None, ckpt_path=ckpt_path)
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


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def refused(call):
    try:
        return call()
    except Exception:
        return "refused"


# averages ------------------------------------------------------------------------------------------------------------


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


# modes ---------------------------------------------------------------------------------------------------------------


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


# stops ---------------------------------------------------------------------------------------------------------------


class Stop(pl.Callback):
    def __init__(self, batch=1, hook=None):
        self.batch = batch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == self.batch:
            trainer.should_stop = True


def stopped(net=None, **options):
    class Counted(Plain):
        def on_validation_start(self):
            self.seen.append(f"val {self.global_step}")

        def on_train_epoch_end(self):
            self.seen.append(f"end {self.current_epoch}")

        def on_train_end(self):
            self.seen.append(f"over {self.current_epoch}")

    net = net or Counted()
    trainer = fit(net, **{"max_epochs": 3, **options})
    metrics = {name: round(float(value), 5) for name, value in trainer.callback_metrics.items()}
    return net.seen, trainer.current_epoch, trainer.global_step, metrics, total(net), trainer.should_stop


@feature
def stop_within_an_epoch():
    return stopped(callbacks=[Stop()])


@feature
def stop_at_the_last_batch():
    return stopped(callbacks=[Stop(3)])


@feature
def stop_without_validation():
    return stopped(callbacks=[Stop()], val=False)


@feature
def stop_behind_min_epochs():
    return stopped(callbacks=[Stop()], min_epochs=2)


@feature
def stop_behind_min_steps():
    return stopped(callbacks=[Stop()], min_steps=6)


@feature
def stop_by_max_steps():
    return stopped(max_steps=6, max_epochs=-1)


@feature
def stop_by_max_steps_at_an_epochs_end():
    return stopped(max_steps=8, max_epochs=-1)


@feature
def stop_with_val_check_interval():
    return stopped(callbacks=[Stop(2)], val_check_interval=2)


@feature
def stop_with_check_val_every_n_epoch():
    return stopped(callbacks=[Stop(2)], check_val_every_n_epoch=2)


@feature
def stop_in_training_step():
    class Stopping(Plain):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                self.trainer.should_stop = True
            return super().training_step(batch, batch_idx)

    return stopped(Stopping())


@feature
def stop_in_validation():
    class Stopping(Plain):
        def on_validation_end(self):
            self.trainer.should_stop = True

    return stopped(Stopping(), val_check_interval=2)


@feature
def stop_with_accumulation():
    return stopped(callbacks=[Stop(2)], accumulate_grad_batches=2)


@feature
def stop_of_an_epoch_by_minus_one():
    class Leaving(Plain):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    return stopped(Leaving())


@feature
def stop_saves_the_best():
    kept = C.ModelCheckpoint(dirpath=new_folder(), monitor="val", filename="{epoch}-{step}")
    stopped(callbacks=[Stop(), kept], enable_checkpointing=True)
    return os.path.basename(kept.best_model_path)


@feature
def stop_saves_without_monitor():
    kept = C.ModelCheckpoint(dirpath=new_folder(), filename="{epoch}-{step}", save_top_k=-1)
    stopped(callbacks=[Stop(), kept], enable_checkpointing=True)
    return sorted(os.listdir(kept.dirpath))


@feature
def max_steps_saves():
    found = []
    for options in ({}, {"monitor": "val"}, {"monitor": "loss"}, {"save_last": True}):
        kept = C.ModelCheckpoint(dirpath=new_folder(), filename="{epoch}-{step}", save_top_k=-1, **options)
        stopped(callbacks=[kept], enable_checkpointing=True, max_steps=6, max_epochs=-1)
        found.append(sorted(os.listdir(kept.dirpath)))
    return found


class Rising(Plain):
    """A validation that gets worse with each run."""

    def on_validation_start(self):
        self.seen.append(self.global_step)

    def validation_step(self, batch, batch_idx):
        self.log("val", float(len(self.seen)))

    def training_step(self, batch, batch_idx):
        self.log("rising", float(self.global_step))
        return super().training_step(batch, batch_idx)


@feature
def early_stopping():
    stopping = C.EarlyStopping("val", patience=1)
    return stopped(Rising(), callbacks=[stopping], max_epochs=9)[:3], stopping.stopped_epoch, stopping.wait_count


@feature
def early_stopping_behind_min_epochs():
    stopping = C.EarlyStopping("val", patience=1)
    return stopped(Rising(), callbacks=[stopping], max_epochs=9, min_epochs=5)[:3], stopping.stopped_epoch


@feature
def early_stopping_behind_min_steps():
    stopping = C.EarlyStopping("val", patience=1)
    return stopped(Rising(), callbacks=[stopping], max_epochs=9, min_steps=14)[:3], stopping.stopped_epoch


@feature
def early_stopping_within_epochs():
    stopping = C.EarlyStopping("val", patience=2)
    return stopped(Rising(), callbacks=[stopping], max_epochs=9, val_check_interval=1)[:3], stopping.stopped_epoch


@feature
def early_stopping_on_training():
    stopping = C.EarlyStopping("rising", patience=2, check_on_train_epoch_end=True)
    return stopped(Rising(), callbacks=[stopping], max_epochs=9)[:3], stopping.stopped_epoch


# random state --------------------------------------------------------------------------------------------------------


def drawn(hook=None, workers=0, callback=False, loader=None, **options):
    """The order of samples, and what dropout leaves, where a hook draws a number."""
    pl.seed_everything(3, verbose=False)

    class Dropped(Plain):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 1))

        def training_step(self, batch, batch_idx):
            self.seen.append(batch[1].tolist())
            return super().training_step(batch, batch_idx)

    def draw(self, *args, **kwargs):
        net.seen.append(round(float(torch.rand(1)), 4))

    if hook is not None and not callback:
        setattr(Dropped, hook, draw)
    net = Dropped()
    given = [type("Draws", (pl.Callback,), {hook: draw})()] if callback else []
    dataset = TensorDataset(DATA, torch.arange(len(DATA)))
    trainer = pl.Trainer(**{"max_epochs": 2, **QUIET, **options}, callbacks=given)
    make = loader or (lambda: DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers))
    trainer.fit(net, make(), DataLoader(dataset, batch_size=4))
    return net.seen, total(net)


@feature
def random_without_hooks():
    return drawn(), drawn(num_sanity_val_steps=2)


@feature
def random_in_setup():
    return drawn("setup"), drawn("configure_model"), drawn("on_fit_start")


@feature
def random_in_sanity_check():
    return drawn("on_sanity_check_start", num_sanity_val_steps=2), drawn(
        "on_sanity_check_end", callback=True, num_sanity_val_steps=2
    )


@feature
def random_in_on_train_start():
    return drawn("on_train_start"), drawn("on_train_start", num_sanity_val_steps=2)


@feature
def random_in_on_train_start_of_a_callback():
    return drawn("on_train_start", callback=True)


@feature
def random_in_on_train_epoch_start():
    return drawn("on_train_epoch_start"), drawn("on_train_epoch_start", num_sanity_val_steps=2)


@feature
def random_in_batches():
    return drawn("on_train_batch_start"), drawn("on_before_zero_grad"), drawn("on_train_batch_end")


@feature
def random_in_validation():
    return [
        drawn(f"on_validation_{each}", num_sanity_val_steps=2) for each in ("start", "epoch_end", "end", "model_eval")
    ]


@feature
def random_at_the_end_of_epochs():
    return drawn("on_train_epoch_end"), drawn("on_train_epoch_end", callback=True)


@feature
def random_with_several_loaders():
    dataset = TensorDataset(DATA, torch.arange(len(DATA)))

    class Two(Plain):
        def training_step(self, batch, batch_idx):
            self.seen.append([batch["a"][1].tolist(), batch["b"][1].tolist()])
            return self.loss(batch["a"])

        def on_train_start(self):
            torch.rand(1)

    pl.seed_everything(3, verbose=False)
    net = Two()
    loaders = {
        "a": DataLoader(dataset, batch_size=4, shuffle=True),
        "b": DataLoader(dataset, batch_size=2, shuffle=True),
    }
    pl.Trainer(max_epochs=2, **QUIET).fit(net, loaders)
    return net.seen


@feature
def random_in_evaluation():
    class Noisy(Plain):
        def on_test_start(self):
            self.seen.append(round(float(torch.rand(1)), 4))

        def on_predict_start(self):
            self.seen.append(round(float(torch.rand(1)), 4))

    pl.seed_everything(3, verbose=False)
    net, trainer = Noisy(), pl.Trainer(**QUIET)
    trainer.test(net, load(), verbose=False)
    trainer.predict(net, load())
    return net.seen, round(float(torch.rand(1)), 4)


@feature
def random_after_fit():
    drawn()
    return round(float(torch.rand(1)), 4)


# schedulers ----------------------------------------------------------------------------------------------------------


def rates(net, **options):
    fit(net, **options)
    return net.seen


@feature
def scheduler_by_epoch():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5)))


@feature
def scheduler_by_two_epochs():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5), frequency=2), max_epochs=5)


@feature
def scheduler_by_step():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5), interval="step"))


@feature
def scheduler_by_three_steps():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5), interval="step", frequency=3), max_epochs=3)


@feature
def scheduler_by_step_with_accumulation():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5), interval="step"), accumulate_grad_batches=2)


@feature
def scheduler_by_two_steps_with_accumulation():
    return rates(scheduled(lambda o: StepLR(o, 1, 0.5), interval="step", frequency=2), accumulate_grad_batches=2)


@feature
def scheduler_by_three_steps_with_accumulation():
    net = scheduled(lambda o: StepLR(o, 1, 0.5), interval="step", frequency=3)
    return rates(net, accumulate_grad_batches=2, max_epochs=3)


@feature
def scheduler_by_two_steps_with_accumulation_of_three():
    net = scheduled(lambda o: StepLR(o, 1, 0.5), interval="step", frequency=2)
    return rates(net, accumulate_grad_batches=3, max_epochs=3)


def plateau(**options):
    return scheduled(lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0), monitor="val", **options)


@feature
def plateau_by_epoch():
    return rates(plateau(), max_epochs=5)


@feature
def plateau_every_second_epoch():
    return refused(lambda: rates(plateau(), max_epochs=6, check_val_every_n_epoch=2))


@feature
def plateau_every_second_epoch_with_frequency():
    return rates(plateau(frequency=2), max_epochs=8, check_val_every_n_epoch=2)


@feature
def plateau_every_second_epoch_not_strict():
    return rates(plateau(strict=False), max_epochs=6, check_val_every_n_epoch=2)


@feature
def plateau_by_step():
    net = scheduled(lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0), monitor="loss", interval="step")
    return rates(net)


@feature
def plateau_by_step_of_validation():
    return rates(plateau(interval="step", strict=False), val_check_interval=2)


@feature
def plateau_of_training():
    net = scheduled(lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0), monitor="loss")
    return rates(net, max_epochs=4)


@feature
def plateau_with_two_validations_an_epoch():
    return rates(plateau(), max_epochs=4, val_check_interval=2)


@feature
def scheduler_when_an_epoch_is_left():
    net = scheduled(lambda o: StepLR(o, 1, 0.5))
    start = net.on_train_batch_start

    def leave(batch, batch_idx):
        start(batch, batch_idx)
        return -1 if batch_idx == 2 else None

    net.on_train_batch_start = leave
    return rates(net, max_epochs=3)


@feature
def scheduler_as_hooks_see_it():
    class Seen(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return [optimizer], [StepLR(optimizer, 1, 0.5)]

        def see(self, where):
            self.seen.append((where, self.optimizers().param_groups[0]["lr"]))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.see(batch_idx)

        def on_validation_start(self):
            self.see("validation")

        def on_train_epoch_end(self):
            self.see("epoch")

    return rates(Seen())


@feature
def scheduler_of_an_unknown_length():
    class Data(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(each,) for each in DATA])

    net = scheduled(lambda o: StepLR(o, 1, 0.5))
    return rates(net, train=DataLoader(Data(), batch_size=2), max_epochs=3)


@feature
def scheduler_in_manual_optimization():
    net = scheduled(lambda o: StepLR(o, 1, 0.5))
    net.automatic_optimization = False
    return rates(net)


@feature
def scheduler_when_steps_are_skipped():
    net = scheduled(lambda o: StepLR(o, 1, 0.5), interval="step")
    step = net.training_step
    net.training_step = lambda batch, batch_idx: step(batch, batch_idx) if batch_idx % 2 else None
    return rates(net)


@feature
def scheduler_with_own_step():
    class Own(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.5), "interval": "step", "frequency": 2}]

        def lr_scheduler_step(self, scheduler, metric):
            self.seen.append((type(scheduler).__name__, metric, self.global_step))
            scheduler.step()

    net = Own()
    fit(net)
    return net.seen


# what programs assign, and find afterwards ---------------------------------------------------------------------------


class Noting(Plain):
    def on_before_optimizer_step(self, optimizer):
        self.seen.append(type(getattr(optimizer, "optimizer", optimizer)).__name__)


@feature
def assigned_optimizers():
    class Assigning(pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                trainer.strategy.optimizers = [torch.optim.Adam(module.parameters(), 0.1)]

    net = Noting()
    fit(net, callbacks=[Assigning()])
    return net.seen, total(net)


@feature
def assigned_optimizers_of_the_trainer():
    class Assigning(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 2:
                trainer.optimizers = [torch.optim.Adam(module.parameters(), 0.1)]

    net = Noting()
    fit(net, callbacks=[Assigning()])
    return net.seen, total(net)


@feature
def assigned_optimizers_in_manual_optimization():
    class Manual(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.trainer.strategy.optimizers = [torch.optim.Adam(self.parameters(), 0.1)]

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.seen.append(type(optimizer.optimizer).__name__)
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    net = Manual()
    fit(net)
    return net.seen, total(net)


@feature
def assigned_schedulers():
    class Assigning(pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                trainer.lr_scheduler_configs[0].scheduler = StepLR(trainer.optimizers[0], 1, 0.1)

    return rates(scheduled(lambda o: StepLR(o, 1, 0.5)), callbacks=[Assigning()], max_epochs=4)


@feature
def assigned_scheduler_configs():
    from lightning.pytorch.utilities.types import LRSchedulerConfig

    class Assigning(pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                config = LRSchedulerConfig(StepLR(trainer.optimizers[0], 1, 0.1), interval="step", frequency=2)
                trainer.strategy.lr_scheduler_configs = [config]

    return rates(scheduled(lambda o: StepLR(o, 1, 0.5)), callbacks=[Assigning()], max_epochs=4)


@feature
def assigned_limits():
    found = []
    trainer = fit(Plain(), max_epochs=1)
    for name, value in (("limit_train_batches", 2), ("limit_train_batches", 0.25), ("limit_val_batches", 0)):
        setattr(trainer, name, value)
        trainer.fit_loop.max_epochs += 1
        trainer.fit(net := Stopless(), load(), load())
        found.append((name, net.seen, trainer.global_step))
    return found


class Stopless(Plain):
    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(batch_idx)


@feature
def assigned_min_epochs():
    trainer = fit(Plain(), max_epochs=1)
    trainer.fit_loop.min_epochs, trainer.fit_loop.max_epochs = 1, 3
    trainer.fit(Plain(), load())
    return trainer.current_epoch, trainer.global_step


@feature
def after_fit():
    trainer = fit(net := scheduled(lambda o: StepLR(o, 1, 0.5)))
    schedulers = [type(each.scheduler).__name__ for each in trainer.lr_scheduler_configs]
    optimizers = [type(each).__name__ for each in trainer.optimizers]
    return optimizers, schedulers, trainer.is_last_batch, isinstance(net.optimizers(), torch.optim.Optimizer)


@feature
def after_two_fits():
    trainer = fit(Plain())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(net := Plain(), load())
    return len(trainer.optimizers), trainer.current_epoch, trainer.global_step, total(net)


@feature
def after_fit_and_evaluation():
    trainer = fit(net := scheduled(lambda o: StepLR(o, 1, 0.5)))
    found = []
    for evaluate in (trainer.validate, trainer.test, trainer.predict):
        with quiet():
            evaluate(net, load())
        found += [net.optimizers().param_groups[0]["lr"], net.lr_schedulers().last_epoch, len(trainer.optimizers)]
    trainer.save_checkpoint("evaluated.ckpt")
    again = fit(net, max_epochs=3, ckpt_path="evaluated.ckpt")
    return found, again.global_step, again.optimizers[0].param_groups[0]["lr"]


@feature
def unknown_keys_of_dicts():
    def form(make):
        class Formed(Plain):
            def configure_optimizers(self):
                optimizer = torch.optim.SGD(self.parameters(), 1.0)
                return make(optimizer, StepLR(optimizer, 1, 0.5))

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer = fit(Formed())
        texts = sorted(f"{each.category.__name__}: {each.message}" for each in said if "keys" in str(each.message))
        return trainer.optimizers[0].param_groups[0]["lr"], texts

    forms = (
        lambda o, s: ([o], {"scheduler": s, "gamma": 0.5}),
        lambda o, s: ([o], [{"scheduler": s, "interval": "step", "gamma": 0.5}]),
        lambda o, s: {"optimizer": o, "lr_scheduler": {"scheduler": s, "gamma": 0.5}, "frequency": 2},
        lambda o, s: [{"optimizer": o, "lr_scheduler_config": s}],
    )
    return [form(each) for each in forms]


@feature
def outputs_of_training_steps():
    found = []

    class Outputs(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            found.append({name: round(float(value), 4) for name, value in outputs.items()})

    class Returning(Plain):
        def __init__(self, returned):
            super().__init__()
            self.returned = returned

        def training_step(self, batch, batch_idx):
            return self.returned(self.loss(batch))

    for returned in (lambda loss: loss, lambda loss: {"loss": loss, "other": 3.0}):
        fit(Returning(returned), max_epochs=1, callbacks=[Outputs()])
        fit(Returning(returned), max_epochs=1, callbacks=[Outputs()], accumulate_grad_batches=2)
    return found


@feature
def outputs_of_skipped_steps():
    found = []

    class Skipping(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

        def on_train_batch_end(self, outputs, batch, batch_idx):
            found.append((sorted(outputs), self.global_step))

    net = Skipping()
    trainer = fit(net, max_steps=5)
    return found, trainer.global_step, total(net)


@feature
def forms_of_configure_optimizers():
    def form(make):
        class Formed(Plain):
            def configure_optimizers(self):
                return make(torch.optim.SGD(self.parameters(), 0.1))

        return lambda: (trainer := fit(Formed()), trainer.global_step, len(trainer.lr_scheduler_configs))[1:]

    forms = (
        lambda o: [o],
        lambda o: ([o], StepLR(o, 1)),
        lambda o: ([o], {"scheduler": StepLR(o, 1), "monitor": "val"}),
        lambda o: ([o], [StepLR(o, 1)]),
        lambda o: {"optimizer": o, "lr_scheduler": StepLR(o, 1)},
        lambda o: [{"optimizer": o}],
    )
    return [refused(form(each)) for each in forms]


@feature
def loaders_that_are_not_asked_more():
    class Strict(DataLoader):
        def __iter__(self):
            return zip(super().__iter__(), range(4), strict=True)

    class Both(Plain):
        def training_step(self, batch, batch_idx):
            return self.loss(batch[0])

    class Counted(DataLoader):
        def __iter__(self):
            yield from super().__iter__()
            asked.append("beyond")

    asked = []
    trainer = fit(Both(), val=False, train=Strict(TensorDataset(DATA), batch_size=2))
    fit(Plain(), val=False, train=Counted(TensorDataset(DATA), batch_size=2))
    return trainer.global_step, asked


@feature
def small_arguments():
    found = [fit(Plain(), log_every_n_steps=0).global_step]

    class Stateless(pl.Callback):
        def state_dict(self):
            return None

    found.append(fit(Plain(), callbacks=[Stateless()], enable_checkpointing=True).global_step)
    found.append(type(L.Fabric(accelerator="cpu", devices=1, precision="16-mixed")).__name__)
    return found


# callbacks and their states ------------------------------------------------------------------------------------------


def noted(names, module=False, **options):
    """The hooks of these names in the order in which a run calls them, of a callback and of a module."""

    def note(name, owner):
        return lambda self, *args, **kwargs: seen.append(f"{owner} {name}")

    seen = []
    hooks = {name: note(name, "callback") for name in names}
    net = type("Noted", (Plain,), {name: note(name, "module") for name in names if hasattr(Plain, name)})()
    fit(net, **{"max_epochs": 1, "callbacks": [type("Notes", (pl.Callback,), hooks)()], **options})
    return seen


@feature
def hooks_of_an_optimizer_step():
    names = "on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step on_train_batch_end"
    return noted(names.split(), limit_train_batches=1, val=False)


@feature
def hooks_of_a_fit():
    names = "setup on_fit_start on_train_start on_train_epoch_start on_train_epoch_end on_train_end on_fit_end teardown"
    return noted(names.split())


@feature
def hooks_of_a_validation():
    names = "on_validation_start on_validation_epoch_start on_validation_batch_end on_validation_epoch_end"
    return noted([*names.split(), "on_validation_end", "on_train_epoch_end"])


@feature
def hooks_of_a_sanity_check():
    seen = []

    class Seen(pl.Callback):
        def on_sanity_check_start(self, trainer, module):
            seen.append(("start", trainer.sanity_checking, module.training))

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            seen.append((batch_idx, trainer.sanity_checking, trainer.validating, trainer.state.stage.value))

        def on_sanity_check_end(self, trainer, module):
            seen.append(("end", trainer.sanity_checking, rounded(trainer.callback_metrics)))

        def on_train_start(self, trainer, module):
            seen.append((trainer.sanity_checking, trainer.state.stage.value, len(trainer.callback_metrics)))

    fit(Plain(), callbacks=[Seen()], num_sanity_val_steps=1, max_epochs=1, limit_val_batches=1)
    return seen


@feature
def hooks_of_an_exception():
    seen = []

    class Failing(Plain):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise ValueError("no")
            return super().training_step(batch, batch_idx)

        def on_exception(self, exception):
            seen.append("module")

    class Seen(pl.Callback):
        def on_exception(self, trainer, module, exception):
            seen.append((type(exception).__name__, trainer.global_step))

    trainer = pl.Trainer(max_epochs=1, callbacks=[Seen()], **QUIET)
    try:
        trainer.fit(Failing(), load())
    except ValueError as error:
        seen.append(str(error))
    return seen, trainer.state.status.value, trainer.interrupted


@feature
def hooks_after_an_exception():
    seen = []

    class Failing(Plain):
        def training_step(self, batch, batch_idx):
            raise ValueError("no")

        def teardown(self, stage):
            seen.append("teardown")

    class Seen(pl.Callback):
        def on_exception(self, trainer, module, exception):
            seen.append(trainer.state.status.value)

    trainer = pl.Trainer(max_epochs=1, callbacks=[Seen()], **QUIET)
    refused(lambda: trainer.fit(Failing(), load()))
    return seen


class Counting(pl.Callback):
    def __init__(self, name=""):
        self.name, self.count = name, 0

    @property
    def state_key(self):
        return f"Counting[{self.name}]"

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@feature
def states_of_callbacks():
    path = os.path.join(new_folder(), "a.ckpt")
    fit(Plain(), callbacks=[Counting("a"), Counting("b")], max_epochs=1).save_checkpoint(path)
    again = [Counting("b"), Counting("c"), Counting("a")]
    trainer = fit(Plain(), callbacks=again, max_epochs=2, ckpt_path=path)
    return [(each.name, each.count) for each in again], trainer.global_step


@feature
def states_of_callbacks_in_a_test():
    path = os.path.join(new_folder(), "a.ckpt")
    fit(Plain(), callbacks=[Counting()], max_epochs=1).save_checkpoint(path)
    counting = Counting()
    pl.Trainer(callbacks=[counting], **QUIET).test(Plain(), load(), ckpt_path=path, verbose=False)
    return counting.count


@feature
def lambda_callback():
    seen = []
    hooks = {
        name: lambda trainer, *_, name=name, **__: seen.append((name, trainer.global_step))
        for name in ("setup", "on_train_epoch_start", "on_before_optimizer_step", "on_validation_end", "teardown")
    }
    fit(Plain(), callbacks=[C.LambdaCallback(**hooks)], max_epochs=1, limit_train_batches=2)
    return seen


@feature
def accumulation_by_epoch():
    seen = []

    class Seen(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append((trainer.accumulate_grad_batches, trainer.global_step))

    callbacks = [C.GradientAccumulationScheduler({0: 1, 1: 2, 3: 4}), Seen()]
    fit(net := Plain(), callbacks=callbacks, max_epochs=4)
    return seen, total(net)


@feature
def timer():
    stopping = C.Timer({"hours": 1})
    trainer = fit(Plain(), callbacks=[stopping])
    elapsed, remaining = stopping.time_elapsed("train"), stopping.time_remaining("train")
    found = [0 < elapsed < 60, 3500 < remaining <= 3600, float(stopping.time_elapsed("test")), trainer.global_step]
    return found, type(stopping.start_time("train")).__name__, type(stopping.end_time("train")).__name__


@feature
def timer_that_stops():
    with quiet():
        trainer = fit(Plain(), callbacks=[C.Timer({"seconds": 0})])
        other = fit(Plain(), callbacks=[C.Timer({"seconds": 0}, interval="epoch")])
    return trainer.global_step, trainer.current_epoch, other.global_step, other.current_epoch


class Kept(Logger):
    """A logger that keeps what it gets."""

    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, {name: round(float(value), 4) for name, value in metrics.items()}))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def logged(net, **options):
    kept = Kept()
    fit(net, **{"logger": kept, "log_every_n_steps": 1, "max_epochs": 1, **options})
    return kept.rows


@feature
def rates_in_the_logs():
    def rows(net, **options):
        found = logged(net, callbacks=[C.LearningRateMonitor(**options)])
        kept = [{name: value for name, value in row.items() if name.startswith(("lr-", "rate"))} for _, row in found]
        return [dict(sorted(each.items())) for each in kept if each]

    class Groups(Plain):
        def configure_optimizers(self):
            groups = [{"params": [self.layers.weight]}, {"params": [self.layers.bias], "lr": 0.5}]
            optimizer = torch.optim.SGD(groups, 0.1)
            return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"}]

    named = scheduled(lambda o: StepLR(o, 1, 0.5), name="rate")
    return rows(Groups(), logging_interval="step"), rows(named, logging_interval="epoch")


@feature
def rates_and_momenta_in_the_logs():
    class Momentum(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, weight_decay=0.01)

    rows = logged(Momentum(), callbacks=[C.LearningRateMonitor(None, True, True)])
    return len([row for _, row in rows if "lr-SGD" in row]), sorted(
        {name for _, row in rows for name in row if "SGD" in name}
    )


@feature
def statistics_of_the_device():
    found = []
    for options in ({}, {"cpu_stats": True}, {"cpu_stats": False}):
        rows = logged(Plain(), callbacks=[C.DeviceStatsMonitor(**options)], limit_train_batches=1, val=False)
        found.append(sorted({name.split("/")[-1] for _, row in rows for name in row if "/" in name}))
    return found


# logs ----------------------------------------------------------------------------------------------------------------


def rounded(metrics):
    return {name: round(float(value), 4) for name, value in sorted(metrics.items())}


@feature
def log_with_reductions():
    class Reducing(Plain):
        def training_step(self, batch, batch_idx):
            for fx in ("mean", "sum", "min", "max", torch.sum):
                name = fx if isinstance(fx, str) else "function"
                self.log(f"by_{name}", float(batch_idx), on_step=False, on_epoch=True, reduce_fx=fx)
            return self.loss(batch)

    return rounded(fit(Reducing(), max_epochs=1).callback_metrics)


@feature
def log_on_step_and_epoch():
    class Both(Plain):
        def training_step(self, batch, batch_idx):
            self.log("a", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)
            self.log_dict({"b": 1.0, "c": 2.0}, on_step=False, on_epoch=True, logger=False)
            return self.loss(batch)

        def validation_step(self, batch, batch_idx):
            self.log("v", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)

    trainer = fit(Both(), max_epochs=1)
    found = trainer.logged_metrics, trainer.callback_metrics, trainer.progress_bar_metrics
    return [rounded(each) for each in found]


@feature
def log_weighs_by_batch_size():
    class Weighed(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("by_batch", float(batch_idx))
            self.log("by_size", float(batch_idx), batch_size=batch_idx + 1)

    class Pairs(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("v", float(batch_idx))

    trainer = pl.Trainer(**QUIET)
    return [rounded(trainer.validate(net, load(3), verbose=False)[0]) for net in (Weighed(), Pairs())]


@feature
def log_of_hooks():
    class Hooks(Plain):
        def on_train_epoch_start(self):
            self.log("start", 1.0)

        def on_train_batch_start(self, batch, batch_idx):
            self.log("batch", float(batch_idx))

        def on_train_epoch_end(self):
            self.log("end", 3.0)

        def on_validation_epoch_end(self):
            self.log("validated", 4.0)

    return rounded(fit(Hooks(), max_epochs=1).callback_metrics)


@feature
def log_rows():
    class Rows(Plain):
        def training_step(self, batch, batch_idx):
            self.log("each", float(batch_idx))
            self.log("mean", float(batch_idx), on_step=False, on_epoch=True)
            return self.loss(batch)

    return logged(Rows(), log_every_n_steps=2, max_epochs=2)


@feature
def log_refused():
    def step(log):
        class Logging(Plain):
            def training_step(self, batch, batch_idx):
                log(self)
                return self.loss(batch)

        return lambda: fit(Logging(), max_epochs=1).global_step

    return [
        refused(step(each))
        for each in (
            lambda net: net.log("a", torch.ones(2)),
            lambda net: net.log("a", "text"),
            lambda net: net.log("a", {"b": 1.0}),
            lambda net: net.log("a", 1.0, reduce_fx="median"),
            lambda net: net.log("a", torch.ones(1)),
        )
    ]


@feature
def log_of_a_name_with_an_index():
    class Indexed(Plain):
        def training_step(self, batch, batch_idx):
            self.log("a/dataloader_idx_0", 1.0)
            return self.loss(batch)

    return refused(lambda: fit(Indexed(), max_epochs=1).global_step)


@feature
def results_of_several_loaders():
    class Two(Plain):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("with", float(dataloader_idx))
            self.log(f"without_{dataloader_idx}", 1.0 + dataloader_idx, add_dataloader_idx=False)

    trainer = pl.Trainer(**QUIET)
    found = trainer.validate(Two(), [load(), load(4)], verbose=False)
    return found, rounded(trainer.callback_metrics)


@feature
def results_of_a_test():
    trainer = pl.Trainer(**QUIET)
    found = trainer.test(Plain(), load(), verbose=False)
    return [rounded(each) for each in found], rounded(trainer.callback_metrics), trainer.state.fn.value


# checkpoints ---------------------------------------------------------------------------------------------------------


def kept_by(net=None, trainer=None, **options):
    """Names of the files, and what the callback says of them."""
    kept = C.ModelCheckpoint(**{"dirpath": new_folder(), **options})
    fit(net or Rising(), **{"callbacks": [kept], "enable_checkpointing": True, "max_epochs": 3, **(trainer or {})})
    return sorted(os.listdir(kept.dirpath)), os.path.basename(kept.best_model_path), kept


@feature
def checkpoint_names():
    found = [kept_by()[:2], kept_by(filename="{epoch:02d}-{val:.2f}", monitor="val")[:2]]
    found.append(kept_by(filename="x{step}_{val:.1f}", monitor="val", auto_insert_metric_name=False)[:2])
    return found


@feature
def checkpoint_versions():
    folder = new_folder()
    for _ in range(3):
        names = kept_by(dirpath=folder, filename="a", save_last=True)[0]
    return names, kept_by(dirpath=folder, filename="a", enable_version_counter=False)[0]


@feature
def checkpoint_top_k():
    names, best, kept = kept_by(monitor="val", mode="max", save_top_k=2, filename="{epoch}")
    scores = sorted((os.path.basename(path), float(score)) for path, score in kept.best_k_models.items())
    return names, best, scores, float(kept.best_model_score), os.path.basename(kept.kth_best_model_path)


@feature
def checkpoint_every_n_train_steps():
    return (
        kept_by(every_n_train_steps=3, save_top_k=-1)[0],
        kept_by(every_n_train_steps=3)[:2],
        kept_by(every_n_train_steps=2, save_top_k=-1, trainer={"accumulate_grad_batches": 2})[0],
    )


@feature
def checkpoint_every_n_epochs():
    return kept_by(every_n_epochs=2, save_top_k=-1, trainer={"max_epochs": 5})[0]


@feature
def checkpoint_at_the_end_of_training_epochs():
    options = {"filename": "{epoch}-{step}", "save_top_k": -1}
    return (
        kept_by(save_on_train_epoch_end=True, trainer={"check_val_every_n_epoch": 2}, **options)[0],
        kept_by(save_on_train_epoch_end=False, trainer={"check_val_every_n_epoch": 2}, **options)[0],
        kept_by(trainer={"val_check_interval": 2, "max_epochs": 1}, **options)[0],
    )


@feature
def checkpoint_by_time():
    from datetime import timedelta

    return kept_by(train_time_interval=timedelta(hours=1))[0]


@feature
def checkpoint_all_the_time():
    from datetime import timedelta

    return len(kept_by(train_time_interval=timedelta(0), save_top_k=-1)[0]) > 0


@feature
def checkpoint_last():
    names, _, kept = kept_by(save_last=True, save_top_k=0)
    linked = kept_by(save_last="link", filename="a")
    return names, os.path.basename(kept.last_model_path), linked[0], os.path.islink(linked[2].last_model_path)


@feature
def checkpoint_sections():
    path = os.path.join(new_folder(), "a.ckpt")
    trainer = fit(scheduled(lambda o: StepLR(o, 1, 0.5)))
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=False)
    trainer.save_checkpoint(path, weights_only=True)
    names = ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers")
    light = torch.load(path, weights_only=False)
    return [name in saved for name in names], [name in light for name in names], saved["epoch"], saved["global_step"]


@feature
def checkpoint_hooks_of_a_module():
    class Saving(Plain):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = [1, 2]
            checkpoint["state_dict"]["extra"] = torch.ones(1)

        def on_load_checkpoint(self, checkpoint):
            self.seen.append((checkpoint["mine"], checkpoint["state_dict"].pop("extra", None) is not None))

    path = os.path.join(new_folder(), "a.ckpt")
    fit(Saving(), max_epochs=1).save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    loaded = Saving.load_from_checkpoint(path, strict=False)
    return saved["mine"], sorted(saved["state_dict"]), loaded.seen[0][0]


@feature
def resumed():
    path = os.path.join(new_folder(), "a.ckpt")
    fit(scheduled(lambda o: StepLR(o, 1, 0.5)), max_epochs=1).save_checkpoint(path)
    net = scheduled(lambda o: StepLR(o, 1, 0.5))
    trainer = fit(net, max_epochs=3, ckpt_path=path)
    return net.seen, trainer.current_epoch, trainer.global_step


@feature
def datamodule_from_a_checkpoint():
    class Data(pl.LightningDataModule):
        def __init__(self, size=2):
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self):
            return load(self.hparams.size)

    path = os.path.join(new_folder(), "a.ckpt")
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.fit(Plain(), datamodule=Data(4))
    trainer.save_checkpoint(path)
    again = Data.load_from_checkpoint(checkpoint_path=path, map_location="cpu")
    return trainer.global_step, dict(again.hparams), dict(Data.load_from_checkpoint(path, size=8).hparams)


# parts of training that programs take over ---------------------------------------------------------------------------


@feature
def clipping_overridden():
    class Clipping(Plain):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            algorithm = None if gradient_clip_algorithm is None else str(gradient_clip_algorithm.value)
            self.seen.append((gradient_clip_val, algorithm))
            if gradient_clip_val is None:
                self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")
            else:
                self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    found = []
    for options in ({}, {"gradient_clip_val": 0.5}, {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "norm"}):
        fit(net := Clipping(), max_epochs=1, **options)
        found.append((net.seen[0], len(net.seen), total(net)))
    return found


@feature
def clipping():
    found = []
    for algorithm in ("norm", "value"):
        fit(net := Plain(), gradient_clip_val=0.1, gradient_clip_algorithm=algorithm)
        found.append(total(net))
    return found


@feature
def zero_grad_overridden():
    class Zeroing(Plain):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            self.seen.append((epoch, batch_idx))
            optimizer.zero_grad(set_to_none=False)

    fit(net := Zeroing(), max_epochs=1)
    return net.seen, net.layers.weight.grad is None, total(net)


@feature
def optimizer_step_overridden():
    class Stepping(Plain):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            self.seen.append((epoch, batch_idx, self.trainer.global_step))
            if batch_idx % 2:
                optimizer.step(closure=optimizer_closure)
            else:
                optimizer_closure()

    trainer = fit(net := Stepping(), max_epochs=1)
    return net.seen, trainer.global_step, total(net)


@feature
def scheduler_step_overridden():
    class Own(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val"}
            return [optimizer], [plateau, {"scheduler": StepLR(optimizer, 1), "interval": "step"}]

        def lr_scheduler_step(self, scheduler, metric):
            self.seen.append((type(scheduler).__name__, None if metric is None else round(float(metric), 3)))

    fit(net := Own(), max_epochs=1)
    return net.seen


@feature
def manual_optimization():
    class Two(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization, self.other = False, nn.Linear(4, 1)

        def configure_optimizers(self):
            return [torch.optim.SGD(each.parameters(), 0.1) for each in (self.layers, self.other)]

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                self.toggle_optimizer(optimizer)
                self.seen.append([each.requires_grad for each in (self.layers.weight, self.other.weight)])
                loss = (self.layers(batch[0]) + self.other(batch[0])).square().mean()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)
            self.log("loss", loss)

    trainer = fit(net := Two(), max_epochs=1)
    return net.seen[:2], trainer.global_step, round(float(trainer.callback_metrics["loss"]), 4), total(net)


@feature
def manual_optimization_with_a_scheduler():
    class Manual(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            return [optimizer], [StepLR(optimizer, 1, 0.5)]

        def training_step(self, batch, batch_idx):
            optimizer, loss = self.optimizers(), self.loss(batch)
            self.manual_backward(0 * loss)
            if (batch_idx + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                self.lr_schedulers().step()
            self.seen.append(optimizer.param_groups[0]["lr"])

    trainer = fit(net := Manual(), max_epochs=1)
    return net.seen, trainer.global_step


@feature
def backward_overridden():
    class Backward(Plain):
        def backward(self, loss, *args, **kwargs):
            self.seen.append(loss.ndim)
            (2 * loss).backward()

    fit(net := Backward(), max_epochs=1, accumulate_grad_batches=2)
    return net.seen, total(net)


@feature
def backbone_that_is_frozen():
    class Backbone(Net):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = self.layers[:2], self.layers[2]

        def on_train_epoch_end(self):
            frozen = [not each.requires_grad for each in self.backbone.parameters()]
            rates = [round(group["lr"], 5) for group in self.optimizers().param_groups]
            self.seen.append((frozen, self.backbone[1].training, rates))

        def configure_optimizers(self):
            return torch.optim.SGD(filter(lambda each: each.requires_grad, self.parameters()), 0.1)

    found = []
    for options in ({}, {"train_bn": False}):
        finetuning = C.BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False, **options)
        fit(net := Backbone(), callbacks=[finetuning], max_epochs=3)
        found.append((net.seen, total(net)))
    return found


@feature
def pruning():
    def zeros(**options):
        net = Plain()
        net.layers = nn.Linear(4, 4)
        net.loss = lambda batch: net.layers(batch[0]).square().mean()
        fit(net, callbacks=[C.ModelPruning("l1_unstructured", **options)], max_epochs=2)
        return int((net.layers.weight == 0).sum()), sorted(net.state_dict()), total(net)

    return zeros(amount=0.5, use_lottery_ticket_hypothesis=False), zeros(amount=0.25), zeros(amount=3)


# data ----------------------------------------------------------------------------------------------------------------


def text_of(stage):
    return getattr(stage, "value", stage)


class Module(pl.LightningDataModule):
    """Notes the order of its hooks."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def prepare_data(self):
        self.seen.append("prepare")

    def setup(self, stage):
        self.seen.append(f"setup {text_of(stage)}")

    def teardown(self, stage):
        self.seen.append(f"teardown {text_of(stage)}")

    def train_dataloader(self):
        self.seen.append("train")
        return load()

    def val_dataloader(self):
        self.seen.append("val")
        return load()

    def test_dataloader(self):
        self.seen.append("test")
        return load()

    def predict_dataloader(self):
        self.seen.append("predict")
        return load()


@feature
def datamodule_hooks():
    data, trainer = Module(), pl.Trainer(max_epochs=2, **QUIET)
    trainer.fit(net := Plain(), datamodule=data)
    trainer.validate(net, datamodule=data, verbose=False)
    trainer.test(net, datamodule=data, verbose=False)
    trainer.predict(net, datamodule=data)
    return data.seen, trainer.datamodule is data


@feature
def datamodule_that_reloads():
    data = Module()
    pl.Trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1, **QUIET).fit(Plain(), datamodule=data)
    return data.seen


@feature
def loaders_after_on_fit_start():
    class Loading(Plain):
        def on_fit_start(self):
            self.seen.append("fit start")

        def train_dataloader(self):
            self.seen.append("loader")
            return load()

    pl.Trainer(max_epochs=1, **QUIET).fit(net := Loading())
    return net.seen


@feature
def batches_transferred():
    class Transfer(Plain):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.seen.append(("before", dataloader_idx))
            return batch

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            self.seen.append((device.type, dataloader_idx))
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            self.seen.append(("after", dataloader_idx))
            return [each + 1 for each in batch]

    fit(net := Transfer(), max_epochs=1, limit_train_batches=1, limit_val_batches=1)
    return net.seen, total(net)


@feature
def predictions():
    class Several(Plain):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return self(batch[0])

    trainer = pl.Trainer(**QUIET)
    whole, none = trainer.predict(Plain(), load(4)), trainer.predict(Plain(), load(4), return_predictions=False)
    two = trainer.predict(Several(), [load(4), load(8)])
    return [tuple(each.shape) for each in whole], none, [[tuple(each.shape) for each in part] for part in two]


@feature
def predictions_that_are_written():
    seen = []

    class Writer(C.BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            seen.append((batch_idx, dataloader_idx, batch_indices, tuple(prediction.shape)))

        def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
            seen.append((len(predictions), batch_indices))

    for interval in ("batch", "epoch", "batch_and_epoch"):
        pl.Trainer(callbacks=[Writer(interval)], **QUIET).predict(Plain(), load(4), return_predictions=False)
        seen.append(interval)
    return seen


@feature
def limits():
    found = []
    for value in (1.0, 0.5, 3):
        net = Stopless()
        trainer = fit(net, limit_train_batches=value, limit_val_batches=0.5, max_epochs=1)
        found.append((net.seen, trainer.num_training_batches, trainer.num_val_batches, trainer.global_step))
    return found


@feature
def limits_of_nothing():
    return fit(Plain(), limit_train_batches=0, max_epochs=1).global_step


@feature
def overfitting():
    class Seen(Plain):
        def training_step(self, batch, batch_idx):
            self.seen.append(round(float(batch[0].sum()), 3))
            return super().training_step(batch, batch_idx)

    torch.manual_seed(0)
    fit(net := Seen(), overfit_batches=2, train=load(shuffle=True))
    return net.seen[:2] == net.seen[2:], len(net.seen)


@feature
def a_fast_dev_run():
    with quiet():
        trainer = fit(net := Stopless(), fast_dev_run=2, enable_checkpointing=True, num_sanity_val_steps=2)
    found = (
        trainer.fast_dev_run,
        trainer.max_epochs,
        trainer.num_val_batches,
        trainer.checkpoint_callback.best_model_path,
    )
    return net.seen, trainer.global_step, found


@feature
def attributes_that_are_set():
    found, trainer = [], pl.Trainer(max_epochs=1, **QUIET)
    data = Module()
    for name, value in (
        ("gradient_clip_val", 0.5),
        ("gradient_clip_algorithm", "value"),
        ("should_stop", True),
        ("limit_val_batches", 1),
        ("callbacks", []),
        ("loggers", []),
        ("accumulate_grad_batches", 2),
    ):
        try:
            setattr(trainer, name, value)
            said = getattr(trainer, name)
            found.append((name, getattr(said, "value", said)))
        except Exception:
            found.append((name, "refused"))
    trainer.fit(Plain(), datamodule=data)
    return found, trainer.global_step, trainer.max_epochs


@feature
def attributes_that_are_refused():
    found = []
    for name, value in (("fast_dev_run", 1), ("training", True), ("testing", True)):
        trainer = pl.Trainer(**QUIET)
        found.append((name, refused(lambda: setattr(trainer, name, value))))  # noqa: B023
    return found


@feature
def attributes_within_a_run():
    seen = []

    class Seen(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx in (0, 2, 3):
                own = module.global_step, module.current_epoch, module.local_rank, module.device.type
                seen.append((trainer.training, trainer.is_last_batch, trainer.num_training_batches, own))
                loop = trainer.fit_loop.epoch_loop
                seen.append((loop.batch_idx, loop.total_batch_idx, trainer.fit_loop.total_batch_idx, loop.global_step))
                ranks = trainer.world_size, trainer.is_global_zero, trainer.num_devices
                seen.append((trainer.estimated_stepping_batches, *ranks))

    fit(Plain(), callbacks=[Seen()], max_epochs=1)
    return seen


@feature
def hyperparameters():
    class Saving(Plain):
        def __init__(self, width=3, *, ignored=None, **more):
            super().__init__()
            self.save_hyperparameters(ignore=["ignored"])

    class Named(Plain):
        def __init__(self, width, depth=2):
            super().__init__()
            self.save_hyperparameters("depth")
            self.save_hyperparameters({"extra": 1})

    found = Saving(4, ignored=nn.ReLU(), other=5), Named(7)
    path = os.path.join(new_folder(), "a.ckpt")
    fit(found[0], max_epochs=1).save_checkpoint(path)
    again = Saving.load_from_checkpoint(path, width=9)
    return [dict(sorted(each.hparams.items())) for each in (*found, again)], found[0].hparams.width


# loops of a program's own --------------------------------------------------------------------------------------------


def fabric(**options):
    found = L.Fabric(**{"accelerator": "cpu", "devices": 1, **options})
    found.launch()
    return found


@feature
def fabric_loop():
    own, module = fabric(), Plain()
    net, optimizer = own.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    losses = []
    for batch in own.setup_dataloaders(load(4)):
        optimizer.zero_grad()
        loss = (net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        own.backward(loss)
        optimizer.step()
        losses.append(round(float(loss), 4))
    return losses, total(module), own.global_rank, own.world_size, own.is_global_zero, own.device.type


@feature
def fabric_clipping():
    own, module = fabric(), nn.Linear(4, 1)
    nn.init.ones_(module.weight)
    net, optimizer = own.setup(module, torch.optim.SGD(module.parameters(), 0.1))

    def clipped(factor, **options):
        optimizer.zero_grad()
        own.backward(net(DATA).sum() * factor)
        norm = own.clip_gradients(net, optimizer, **options)
        return None if norm is None else round(float(norm), 4), round(float(module.weight.grad.abs().sum()), 4)

    found = [clipped(1.0, max_norm=0.5), clipped(1.0, clip_val=0.1)]
    return found, refused(lambda: clipped(float("inf"), max_norm=0.5))


@feature
def fabric_saves():
    own, module = fabric(), Plain()
    net, optimizer = own.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    path = os.path.join(new_folder(), "a.ckpt")
    own.save(path, {"net": net, "optimizer": optimizer, "step": 3}, filter={"net": lambda name, value: "bias" in name})
    state = {"net": net, "step": 0}
    rest = own.load(path, state, strict=False)
    return state["step"], sorted(rest), sorted(torch.load(path, weights_only=False)["net"])


@feature
def fabric_callbacks():
    class Seen:
        def on_epoch(self, number, word=None):
            seen.append((number, word))

    seen = []
    own = fabric(callbacks=[Seen(), Seen()])
    own.call("on_epoch", 1, word="a")
    own.call("nothing")
    return seen


@feature
def fabric_logs():
    kept = Kept()
    own = fabric(loggers=kept)
    own.log("a", torch.tensor(1.5), step=2)
    own.log_dict({"b": 1, "c": 2.0}, step=3)
    return kept.rows, own.logger is kept, len(own.loggers)


@feature
def fabric_accumulates():
    own, module = fabric(), nn.Linear(4, 1)
    nn.init.ones_(module.weight)
    net, optimizer = own.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    for index, batch in enumerate(own.setup_dataloaders(load())):
        with own.no_backward_sync(net, enabled=index % 2 == 0):
            own.backward(net(batch[0]).sum())
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    return round(float(module.weight.detach().abs().sum()), 4), own.all_reduce(torch.ones(2)).tolist()


# what is drawn -------------------------------------------------------------------------------------------------------


@feature
def bars_that_are_overridden():
    from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

    class Tqdm(TQDMProgressBar):
        def init_train_tqdm(self):
            seen.append("train")
            return super().init_train_tqdm()

        def init_validation_tqdm(self):
            seen.append("validation")
            return super().init_validation_tqdm()

    class Rich(RichProgressBar):
        def configure_columns(self, trainer):
            seen.append("columns")
            return super().configure_columns(trainer)

    seen = []
    for each in (Tqdm, Rich):
        with quiet():
            fit(Plain(), callbacks=[each()], enable_progress_bar=True, max_epochs=1)
    return seen


@feature
def bars_have_metrics():
    class Metrics(C.TQDMProgressBar):
        def get_metrics(self, trainer, module):
            found.append(sorted(super().get_metrics(trainer, module)))
            return {}

    found = []

    class Shown(Plain):
        def training_step(self, batch, batch_idx):
            self.log("shown", 1.0, prog_bar=True)
            return self.loss(batch)

    with quiet():
        fit(Shown(), callbacks=[Metrics()], enable_progress_bar=True, max_epochs=1, val=False)
    return found[-1], len(found) > 0


@feature
def keywords_of_hooks():
    class Own(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer=trainer, pl_module=pl_module)
            seen.append("called")

    seen = []
    return refused(lambda: fit(Plain(), callbacks=[Own()], max_epochs=1).global_step), seen


@feature
def norms_of_gradients():
    from lightning.pytorch.utilities import grad_norm

    class Norms(Plain):
        def on_before_optimizer_step(self, optimizer):
            self.seen.append(rounded(grad_norm(self.layers, norm_type=2)))

    fit(net := Norms(), max_epochs=1, limit_train_batches=1)
    return net.seen


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
