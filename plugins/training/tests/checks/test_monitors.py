"""Monitors that are misspelt are told of once the module has logged something; sound ones never."""

import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau

from core import ConfigurationError, ModuleError
from core.callbacks import Callback, EarlyStopping, ModelCheckpoint
from support.small_nets import Net, batches, quiet_trainer


class Logging(Net):
    """Logs names in training, in each validation and, of `late`, where a run is beyond its
    beginning.
    """

    def __init__(self, train=("train_loss",), validation=("val_loss",), late=(), monitor=None):
        super().__init__()
        self.names, self.monitor = {"train": train, "validation": validation, "late": late}, monitor

    def training_step(self, batch, batch_idx):
        self.log_dict(dict.fromkeys(self.names["train"], 1.0), on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log_dict(dict.fromkeys(self.names["validation"], 1.0))
        if not self.trainer.sanity_checking:
            self.log_dict(dict.fromkeys(self.names["late"], 1.0))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if self.monitor is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": ReduceLROnPlateau(optimizer),
            "monitor": self.monitor,
        }


def fit(module, *callbacks, **options):
    trainer = quiet_trainer(
        **{"num_sanity_val_steps": 1, "max_epochs": 1, **options}, callbacks=list(callbacks)
    )
    trainer.fit(module, batches(2), batches(1))


@pytest.mark.parametrize("who", ["EarlyStopping", "ModelCheckpoint", "A scheduler"])
@pytest.mark.parametrize(
    ("monitor", "meant", "options"),
    [
        ("Val/loss", "val_loss", {}),
        ("train/loss", "train_loss", {"num_sanity_val_steps": 0}),
    ],
)
def test_a_misspelt_one_is_told_of_before_its_error(who, monitor, meant, options):
    watching = {
        "EarlyStopping": EarlyStopping,
        "ModelCheckpoint": lambda monitor: ModelCheckpoint(monitor=monitor),
    }
    callbacks = [watching[who](monitor)] if who in watching else []
    module = Logging(monitor=None if callbacks else monitor)
    hint = rf"{who} monitors '{monitor}', which nothing has logged so far. Did you mean '{meant}'\?"
    error = pytest.raises(
        (ConfigurationError, ModuleError), match=rf"Did you mean '{meant}(_step|_epoch)?'\?"
    )
    with pytest.warns(UserWarning, match=hint), error:
        fit(module, *callbacks, enable_checkpointing=None, **options)


@pytest.mark.parametrize(
    ("module", "monitor"),
    [
        (Logging(), "val_loss"),
        (Logging(), "train_loss_step"),
        (Logging(late=["accuracy"]), "accuracy"),
        (Logging(validation=["val_reg_loss"], late=["val_rec_loss"]), "val_rec_loss"),
    ],
)
def test_one_that_is_logged_later_is_not(module, monitor):
    fit(module, EarlyStopping(monitor))  # a warning is an error here


@pytest.mark.parametrize("logger", [False, True])
def test_a_callback_may_call_anything_its_monitor(logger, tmp_path):
    callback = Callback()
    callback.monitor = ["val_loss", {}]
    fit(Logging(), callback, logger=logger, default_root_dir=tmp_path)


def one():
    return batches(1)


def make_batches():
    yield from batches(2)


@pytest.mark.parametrize(
    ("train", "validation"),
    [(make_batches, one), (lambda: zip(batches(2)), one), (lambda: batches(2), make_batches)],
)
def test_an_iterator_for_several_epochs_is_refused_before_the_first_step(train, validation):
    trainer = quiet_trainer(max_epochs=2)
    with pytest.raises(
        ConfigurationError, match=r"which can be iterated over once, and max_epochs=2 asks for more"
    ):
        trainer.fit(Logging(), train(), validation())
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    ("train", "validation", "options"),
    [
        (make_batches, one, {"max_epochs": 1}),
        (make_batches, one, {"max_epochs": 2, "limit_train_batches": 1}),
        (make_batches, one, {"max_epochs": 2, "max_steps": 2}),
        (lambda: batches(2), make_batches, {"max_epochs": 2, "check_val_every_n_epoch": 2}),
    ],
)
def test_an_iterator_that_is_enough_is_taken(train, validation, options):
    trainer = quiet_trainer(**options)
    trainer.fit(Logging(), train(), validation())
    assert trainer.global_step >= 1
