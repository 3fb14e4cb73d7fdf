import math

import pytest

from core import ConfigurationError
from core.callbacks import Callback, EarlyStopping, ModelCheckpoint
from support.tiny import Tiny, loader, make_trainer


def fit(
    root,
    stopping,
    val_losses,
    *others,
    max_epochs=9,
    ckpt_path=None,
    num_validations=0,
    validate=True,
    **options,
):
    trainer = make_trainer(root, stopping, *others, max_epochs=max_epochs, **options)
    module = Tiny(val_losses)
    module.num_validations = num_validations
    trainer.fit(module, loader(), loader() if validate else None, ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(
    ("options", "losses", "epochs"),
    [
        ({"patience": 2}, [3, 2, 2.5, 2.1, 1], 4),
        ({"patience": 2, "mode": "max"}, [1, 2, 1, 1.5, 3], 4),
        ({"patience": 1}, [3, 2, 1, 1, 0], 4),
        ({"patience": 0}, [3, 3], 2),
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.6, 2.0], 2),
        ({"patience": 1, "min_delta": 0.5, "mode": "max"}, [3.0, 3.4, 9.0], 2),
        ({"stopping_threshold": 1.0}, [3, 2, 0.5, 0.1], 3),
        ({"divergence_threshold": 5.0}, [3, 6, 1], 2),
        ({"divergence_threshold": 1.0, "mode": "max"}, [3, 0.5, 4], 2),
        ({"patience": 3}, [4, 3, 2, 1, 0.5, 0.4, 0.3, 0.2, 0.1], 9),
    ],
)
def test_when_it_stops(tmp_path, options, losses, epochs):
    trainer = fit(tmp_path, EarlyStopping("val_loss", **options), losses)
    assert trainer.current_epoch == epochs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stops_with_a_word(tmp_path, value):
    with (
        pytest.warns(UserWarning, match=f"The logged loss 'val_loss' is {value}, seen at step "),
        pytest.warns(
            UserWarning,
            match=f"EarlyStopping ends the run: val_loss is {value}, which is not a finite number",
        ),
    ):
        trainer = fit(tmp_path, EarlyStopping("val_loss"), [3, value, 1])
    assert trainer.current_epoch == 2


def test_what_is_not_finite_only_waits_if_that_is_wanted(tmp_path):
    stopping = EarlyStopping("val_loss", check_finite=False, patience=2)
    with pytest.warns(UserWarning, match="The logged loss 'val_loss' is nan"):
        trainer = fit(tmp_path, stopping, [3, math.nan, 2, math.nan, math.nan])
    assert trainer.current_epoch == 5
    assert stopping.best_score.item() == 2


def test_why_and_where(tmp_path, capsys):
    stopping = EarlyStopping("val_loss", patience=1, verbose=True)
    trainer = fit(tmp_path, stopping, [3, 2, 2.5])
    assert trainer.should_stop
    assert (stopping.stopped_epoch, stopping.wait_count) == (2, 1)
    reason = "val_loss is 2.5, and did not get better than 2 in 1 checks (patience=1, min_delta=0)."
    assert stopping.stopping_reason == reason
    assert capsys.readouterr().out.splitlines() == [
        "EarlyStopping: val_loss improved to 3.",
        "EarlyStopping: val_loss improved to 2.",
        f"EarlyStopping: {reason}",
    ]


@pytest.mark.parametrize(
    ("losses", "options", "stopped"),
    [
        ([1, 2, 2, 0.5, 0.4, 0.3, 0.2], {"min_epochs": 5}, 28),
        ([1, 2, 2, 0.5, 0.4, 0.3, 0.2], {"min_steps": 20}, 28),
        ([1, 2, 2, 2, 2, 0.5, 0.4], {"min_epochs": 5}, 20),
        ([1, 2, 2, 2, 2, 0.5, 0.4], {"min_steps": 18}, 20),
        ([1, 2], {"min_epochs": 2, "val_check_interval": 2}, 8),
    ],
)
@pytest.mark.parametrize("resumes", [False, True])
def test_what_it_sees_before_the_least_epochs_and_steps_does_not_stop(
    tmp_path, losses, options, stopped, resumes
):
    options = {**options, "max_epochs": 7}
    if resumes:
        checkpoint = ModelCheckpoint(tmp_path / "c")
        fit(
            tmp_path,
            EarlyStopping("val_loss", patience=2),
            losses,
            checkpoint,
            **{**options, "max_epochs": 1},
        )
        options |= {
            "ckpt_path": checkpoint.best_model_path,
            "num_validations": 4 // options.get("val_check_interval", 4),
        }
    stopping = EarlyStopping("val_loss", patience=2)
    trainer = fit(tmp_path, stopping, losses, **options, enable_checkpointing=False)
    assert trainer.global_step == stopped
    assert bool(stopping.stopping_reason) is (stopped < 28)


def test_a_save_at_the_end_of_an_epoch_counts_its_check(tmp_path):
    class Saving(Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch == 1:
                trainer.save_checkpoint(tmp_path / "c.ckpt")

    losses = [3, 4, 5, 6, 7, 8]
    whole = fit(tmp_path, EarlyStopping("val_loss"), losses, Saving())
    options = {"ckpt_path": tmp_path / "c.ckpt", "num_validations": 2}
    stopping = EarlyStopping("val_loss")
    resumed = fit(tmp_path, stopping, losses, Saving(), **options)
    assert whole.current_epoch == resumed.current_epoch == 4
    assert (stopping.wait_count, stopping.best_score.item()) == (3, 3)


def test_a_metric_of_training(tmp_path):
    stopping = EarlyStopping("train_loss", mode="max", patience=2)
    assert fit(tmp_path, stopping, [], validate=False).current_epoch == 3


@pytest.mark.parametrize(
    ("options", "rhythm", "losses", "steps"),
    [
        ({"patience": 1}, {"val_check_interval": 1}, [3, 2, 2.5], 3),
        (
            {"patience": 1, "check_on_train_epoch_end": True},
            {"val_check_interval": 1},
            [3, 9, 9, 2, 9, 9, 9, 3],
            8,
        ),
        (
            {"patience": 2, "check_on_train_epoch_end": True},
            {"check_val_every_n_epoch": 3},
            [3, 2, 2.5, 2.1],
            48,
        ),
        (
            {"patience": 1, "check_on_train_epoch_end": False},
            {"num_sanity_val_steps": 2},
            [3, 2, 1, 2],
            16,
        ),
    ],
)
def test_which_checks_count(tmp_path, options, rhythm, losses, steps):
    trainer = fit(tmp_path, EarlyStopping("val_loss", **options), losses, max_epochs=20, **rhythm)
    assert trainer.global_step == steps


def test_each_training_epoch_counts_once_although_validation_has_its_own_rhythm(tmp_path):
    class Mean(Tiny):
        def training_step(self, batch, batch_idx):
            self.log("mean", [3.0, 2.0, 1.0, 1.0][self.current_epoch], on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    stopping = EarlyStopping("mean", patience=1)
    trainer = make_trainer(tmp_path, stopping, max_epochs=9, val_check_interval=1)
    trainer.fit(Mean(), loader(), loader())
    assert trainer.current_epoch == 4


def test_it_may_be_missing_if_that_is_wanted(tmp_path):
    with pytest.warns(
        UserWarning, match=r"'loss', which was not logged.*left out, since strict=False"
    ):
        trainer = fit(tmp_path, EarlyStopping("loss", strict=False), [1], max_epochs=2)
    assert trainer.current_epoch == 2


def test_a_later_fit_begins_anew(tmp_path):
    stopping = EarlyStopping("val_loss", patience=2)
    epochs = [
        fit(tmp_path, stopping, losses).current_epoch
        for losses in ([0.1, 1, 1, 1], [5, 4, 3, 4, 4, 4])
    ]
    assert (epochs, stopping.best_score.item(), stopping.stopped_epoch) == ([3, 5], 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "best"}, r"EarlyStopping\(mode='best'\): expected 'min'"),
        ({"patience": -1}, r"EarlyStopping\(patience=-1\): expected a number of checks"),
        (
            {"min_delta": -0.1},
            r"EarlyStopping\(min_delta=-0.1\): expected 0 or more, for both modes",
        ),
    ],
)
def test_arguments_that_cannot_be(options, message):
    with pytest.raises(ConfigurationError, match=message):
        EarlyStopping("val_loss", **options)
