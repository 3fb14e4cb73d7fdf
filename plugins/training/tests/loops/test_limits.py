from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
from recording import Recorder, Validating, fit, loader, make_trainer, seen, stream

from core import Callback, ConfigurationError
from core.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from core_testing import in_one_process
from core_training.loops import validation_schedule
from support import small_nets


class Rhythm(Callback):
    """After how many training batches validation ran."""

    def __init__(self):
        self.at = []

    def on_validation_start(self, trainer, module):
        self.at.append("sanity" if trainer.sanity_checking else trainer.progress.total_batches)


def rhythm(tmp_path, data=None, **options):
    """Of two epochs of eight batches each."""
    listener = Rhythm()
    trainer = make_trainer(tmp_path, callbacks=listener, **{"max_epochs": 2, **options})
    trainer.fit(Validating(tmp_path), loader(8, 1) if data is None else data, loader(2))
    return listener.at


def fit_on_ranks(tmp_path, module, options):
    """Both of two ranks: 20 samples in batches of two."""
    make_trainer(tmp_path, strategy="ddp", devices=2, **options).fit(module, loader(20), loader(8))


# limits of epochs and steps -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [
        ({"max_epochs": 2}, 2, 6),
        ({"max_epochs": 2, "max_steps": 4}, 1, 4),
        ({"max_epochs": 1, "max_steps": 4}, 1, 3),
        ({"max_epochs": -1, "max_steps": 4}, 1, 4),
        ({"max_epochs": None, "max_steps": 3}, 1, 3),
        ({"max_epochs": 0}, 0, 0),
        ({"max_epochs": None, "max_steps": 0}, 0, 0),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, 2, 4),
    ],
)
def test_the_limit_that_is_reached_first(tmp_path, options, epochs, steps):
    trainer = fit(tmp_path, loader(3, 1), **options)
    assert (trainer.current_epoch, trainer.global_step) == (epochs, steps)


def test_without_any_limit_it_is_a_thousand_epochs(tmp_path):
    assert make_trainer(tmp_path, max_epochs=None).options.max_epochs == 1000
    assert (
        make_trainer(tmp_path, max_epochs=None, max_time="00:00:01:00").options.max_epochs is None
    )


# limits of batches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "batches"), [(2, 2), (0.5, 4), (1.0, 8), (1, 1), (100, 8), (None, 8)]
)
def test_limits(tmp_path, limit, batches):
    names = (
        "limit_train_batches",
        "limit_val_batches",
        "limit_test_batches",
        "limit_predict_batches",
    )
    trainer = make_trainer(tmp_path, **dict.fromkeys(names, limit))
    module = Validating(tmp_path)
    trainer.fit(module, loader(8, 1), loader(8, 1))
    trainer.test(module, loader(8, 1))
    assert [len(seen(tmp_path, kind)) for kind in ("train", "validation", "test")] == [batches] * 3
    assert len(trainer.predict(module, loader(8, 1))) == batches


@pytest.mark.parametrize(
    "name", ["limit_predict_batches", "overfit_batches", "limit_train_batches"]
)
@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_what_is_no_limit(tmp_path, name, value):
    with pytest.raises(
        ConfigurationError,
        match=rf"{name}=.*expected a number of batches \(int, 0 or more\), a fraction",
    ):
        make_trainer(tmp_path, **{name: value})


def test_a_fraction_of_nobody_knows_what(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"limit_train_batches=0\.5 is a fraction, and the data set"
    ):
        fit(tmp_path, stream(), limit_train_batches=0.5)
    with pytest.raises(
        ConfigurationError, match=r"limit_predict_batches=0\.1 of 3 batches is less than"
    ):
        make_trainer(tmp_path, limit_predict_batches=0.1).predict(Recorder(tmp_path), loader())


# overfit_batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "data", "expected"),
    [
        (2, loader(20, shuffle=True), [[0, 1], [2, 3]]),
        (0.5, loader(4, 1, shuffle=True), [[0], [1]]),
        (1, loader(5, 3, shuffle=True, drop_last=True), [[0, 1, 2]]),
    ],
)
def test_overfitting_stops_shuffling(tmp_path, amount, data, expected):
    trainer = make_trainer(tmp_path, overfit_batches=amount, max_epochs=3)
    message = f"overfit_batches={amount} needs the same batches in each epoch: the training loader"
    with pytest.warns(UserWarning, match=message):
        trainer.fit(Validating(tmp_path), data, loader(4, 1, start=50))
    assert seen(tmp_path) == expected * 3
    assert seen(tmp_path, "validation") == [[50], [51]][: len(expected)] * 3


def test_two_ranks_overfit_on_their_shares(tmp_path):
    options = {"overfit_batches": 1, "max_epochs": 2, "limit_val_batches": 1}
    in_one_process(fit_on_ranks, tmp_path, Validating(tmp_path), options)
    assert [seen(tmp_path, rank=rank) for rank in (0, 1)] == [[[0, 1]] * 2, [[2, 3]] * 2]
    assert [len(seen(tmp_path, "validation", rank)) for rank in (0, 1)] == [2, 2]


# fast_dev_run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "batches"), [(True, 1), (3, 3)])
def test_fast_dev_run(tmp_path, capsys, value, batches):
    rhythm, saving = Rhythm(), ModelCheckpoint(tmp_path / "checkpoints")
    callbacks = [saving, EarlyStopping("never_logged"), LearningRateMonitor(), rhythm]
    limits = {"max_epochs": 50, "min_steps": 40, "num_sanity_val_steps": 2, "limit_val_batches": 7}
    others = {
        "val_check_interval": 2,
        "logger": small_nets.Recorder(),
        "enable_checkpointing": True,
    }
    trainer = make_trainer(tmp_path, fast_dev_run=value, callbacks=callbacks, **limits, **others)
    module = Validating(tmp_path)
    trainer.fit(module, loader(20), loader(20))
    trainer.test(module, loader(20))
    assert [len(seen(tmp_path, stage)) for stage in ("train", "validation", "test")] == [
        batches
    ] * 3
    assert len(trainer.predict(module, loader(20))) == batches
    assert (trainer.callbacks, rhythm.at, saving.best_model_path) == ([rhythm], [batches], "")
    assert f"fast_dev_run: {batches} batch" in capsys.readouterr().out


def test_a_quick_run_takes_what_a_module_tells_its_logger(tmp_path):
    class Talking(Recorder):
        def on_train_start(self):
            self.logger.experiment.add_image("x", torch.zeros(1))
            self.trainer.logger.log_metrics({"x": 1.0}, 0)

    logger = small_nets.Recorder()
    trainer = make_trainer(tmp_path, fast_dev_run=True, log_every_n_steps=1, logger=logger)
    trainer.fit(Talking(tmp_path), loader())
    assert logger.rows == []


def test_a_quick_run_of_two_ranks_says_it_once(tmp_path, capsys):
    in_one_process(fit_on_ranks, tmp_path, Validating(tmp_path), {"fast_dev_run": True})
    assert capsys.readouterr().out.count("fast_dev_run: 1 batch of each stage") == 1


# when validation runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [8, 16]),
        ({"val_check_interval": 3}, [3, 6, 11, 14]),
        ({"val_check_interval": 4}, [4, 8, 12, 16]),
        ({"val_check_interval": 1.0}, [8, 16]),
        ({"val_check_interval": 0.25}, [2, 4, 6, 8, 10, 12, 14, 16]),
        ({"check_val_every_n_epoch": 2}, [16]),
        ({"check_val_every_n_epoch": 2, "val_check_interval": 4}, [12, 16]),
        ({"check_val_every_n_epoch": 3}, []),
        ({"check_val_every_n_epoch": None, "val_check_interval": 5}, [5, 10, 15]),
        ({"check_val_every_n_epoch": None, "val_check_interval": 12}, [12]),
        ({"check_val_every_n_epoch": None, "val_check_interval": 8}, [8, 16]),
    ],
)
def test_rhythm(tmp_path, options, expected):
    assert rhythm(tmp_path, **options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"val_check_interval": 3}, [3, 6, 11, 14]),
        ({"val_check_interval": 4, "limit_train_batches": 20}, [4, 8, 12, 16]),
        ({"val_check_interval": 4, "limit_train_batches": 6}, [4, 10]),
    ],
)
def test_rhythm_without_a_length(tmp_path, options, expected):
    assert rhythm(tmp_path, stream(8, 1), **options) == expected


@pytest.mark.parametrize(("steps", "batches"), [(0, 0), (2, 2), (-1, 5), (100, 5)])
def test_sanity_check(tmp_path, steps, batches):
    trainer = make_trainer(
        tmp_path, num_sanity_val_steps=steps, limit_train_batches=1, check_val_every_n_epoch=9
    )
    trainer.fit(Validating(tmp_path), loader(), loader(5, 1))
    assert len(seen(tmp_path, "validation")) == batches


@pytest.mark.parametrize("value", ["00:00:00:01", {"seconds": 1}, timedelta(seconds=1)])
def test_a_time_between_validations(tmp_path, monkeypatch, value):
    class Slow(Validating):
        def training_step(self, batch, batch_idx):
            clock.monotonic.return_value += 2 if batch_idx == 3 else 0
            return super().training_step(batch, batch_idx)

    clock = Mock(monotonic=Mock(return_value=0))
    monkeypatch.setattr(validation_schedule, "time", clock)
    listener = Rhythm()
    trainer = make_trainer(tmp_path, callbacks=listener, val_check_interval=value)
    trainer.fit(Slow(tmp_path), loader(8, 1), loader(2))
    (batch,) = listener.at
    assert batch >= 4


@pytest.mark.parametrize("late", [0, 1])
def test_the_time_is_the_first_ranks(tmp_path, monkeypatch, late):
    class Noting(Validating):
        def on_validation_start(self):
            self.note("at", self.trainer.progress.total_batches)

    schedule = validation_schedule.ValidationSchedule
    monkeypatch.setattr(schedule, "_is_late_here", lambda self: self._strategy.global_rank == late)
    in_one_process(
        fit_on_ranks, tmp_path, Noting(tmp_path), {"val_check_interval": timedelta(hours=1)}
    )
    assert seen(tmp_path, "at", 0) == seen(tmp_path, "at", 1)
    assert bool(seen(tmp_path, "at")) is (late == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"val_check_interval": 0},
            "val_check_interval=0: expected at least 1, or a fraction above 0.0",
        ),
        ({"val_check_interval": 1.5}, "val_check_interval=1.5: expected a number of batches"),
        (
            {"val_check_interval": "1 hour"},
            "val_check_interval='1 hour': expected a timedelta, a dict such as",
        ),
        ({"val_check_interval": timedelta(0)}, "expected a time above 0"),
        ({"fast_dev_run": -1}, "fast_dev_run=-1: expected True for one batch, a number of batches"),
        (
            {"check_val_every_n_epoch": 0},
            "check_val_every_n_epoch=0: expected an integer of at least 1",
        ),
        (
            {"check_val_every_n_epoch": None},
            "check_val_every_n_epoch=None counts batches over epochs, and val_check_int",
        ),
        (
            {"check_val_every_n_epoch": None, "val_check_interval": 0.5},
            "isn't a number of them. Pass an int",
        ),
        (
            {"reload_dataloaders_every_n_epochs": -1},
            "reload_dataloaders_every_n_epochs=-1: expected an integer of at l",
        ),
        (
            {"num_sanity_val_steps": -2},
            "sanity_val_steps=-2: expected an integer of at least 0, or -1 for no limit",
        ),
    ],
)
def test_mistakes(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(tmp_path, **options)


def test_an_interval_that_no_epoch_reaches(tmp_path):
    message = (
        "val_check_interval=9 is more than the 8 batches of an epoch, so validation would never run"
    )
    with pytest.raises(ConfigurationError, match=message):
        rhythm(tmp_path, val_check_interval=9)
    assert rhythm(tmp_path, val_check_interval=9, limit_val_batches=0) == []
    with pytest.raises(
        ConfigurationError, match=r"val_check_interval=0\.5 is a fraction, and the data"
    ):
        rhythm(tmp_path, stream(8, 1), val_check_interval=0.5)
