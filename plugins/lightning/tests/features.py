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

import lightning as L
import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks as C
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


def refused(call):
    try:
        return call()
    except Exception:
        return "refused"


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


# stops --------------------------------------------------------------------------------------------------------------


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


# random state -------------------------------------------------------------------------------------------------------


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


# schedulers ---------------------------------------------------------------------------------------------------------


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
