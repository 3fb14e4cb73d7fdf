import time
from datetime import timedelta

import pytest

from core import ConfigurationError
from core.callbacks import LambdaCallback, ModelCheckpoint, Timer
from support.tiny import Tiny, loader, make_trainer


def pause(*_):
    time.sleep(0.02)


def fit(root, timer, *others, ckpt_path=None, **options):
    trainer = make_trainer(root, timer, *others, **{"max_epochs": 2, **options})
    trainer.fit(Tiny(), loader(), loader(), ckpt_path=ckpt_path)
    return trainer


def test_it_measures_each_stage(tmp_path):
    timer = Timer()
    waits = LambdaCallback(on_train_batch_end=pause, on_validation_batch_end=pause)
    trainer = fit(tmp_path, timer, waits, num_sanity_val_steps=2)
    assert timer.time_elapsed("test") == 0
    trainer.test(Tiny(), loader())
    assert timer.time_elapsed() >= 2 * 4 * 2 * 0.02
    assert timer.time_elapsed("validate") >= 2 * 4 * 0.02
    assert timer.time_elapsed("sanity_check") >= 2 * 0.02
    assert timer.time_elapsed("test") > 0
    assert timer.end_time() > timer.start_time()
    assert Timer().start_time("test") is Timer().end_time("test") is None
    assert timer.time_remaining() is None


@pytest.mark.parametrize(("interval", "steps"), [("step", 1), ("epoch", 4)])
def test_it_stops_after_a_step_or_an_epoch(tmp_path, interval, steps, capsys):
    timer = Timer(timedelta(seconds=0.01), interval=interval, verbose=False)
    trainer = fit(tmp_path, timer, LambdaCallback(on_train_batch_start=lambda *_: pause()))
    assert trainer.global_step == steps
    assert capsys.readouterr().out == ""
    assert timer.time_remaining() < 0


def test_time_of_earlier_runs_counts(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c")
    first = Timer()
    fit(tmp_path, first, checkpoint, LambdaCallback(on_train_batch_end=pause), max_epochs=1)
    resumed = Timer(timedelta(seconds=0.05))
    options = {"ckpt_path": checkpoint.best_model_path, "max_epochs": 9}
    trainer = fit(tmp_path, resumed, ModelCheckpoint(tmp_path / "d"), **options)
    assert trainer.global_step == 4
    assert resumed.time_elapsed() >= 4 * 0.02


def test_a_later_fit_begins_anew(tmp_path):
    timer = Timer(timedelta(hours=1))
    fit(tmp_path, timer)
    timer.load_state_dict({"time_elapsed": {"train": 3600.0}})
    assert fit(tmp_path, timer).global_step == 8


def test_arguments_that_cannot_be():
    with pytest.raises(
        ConfigurationError, match=r"Timer\(interval='batch'\): expected 'step' or 'epoch'"
    ):
        Timer(interval="batch")
    with pytest.raises(
        ConfigurationError, match=r"duration='1h': expected a timedelta, a dict such as"
    ):
        Timer("1h")
    with pytest.raises(ConfigurationError, match=r"duration=datetime.timedelta.*: expected"):
        Timer(timedelta(seconds=-1))
