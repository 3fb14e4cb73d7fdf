"""The lines about a run as a whole: from where it goes on, why it ends early, and what is saved of
it.
"""

from datetime import timedelta

import pytest

from core import Trainer
from core.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, Timer
from support.small_nets import QUIET, At, Net, batches


class Flat(Net):
    """A validation loss that never gets better."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 1.0)


STOPPING = At("on_train_batch_end", lambda module: setattr(module.trainer, "should_stop", True))


def lines(capsys, *callbacks, ckpt_path=None, stage="fit", **options):
    """What `stage` prints, a line a string, without the bar's."""
    shown = {**QUIET, "enable_progress_bar": True, "max_epochs": 5}
    trainer = Trainer(callbacks=[*callbacks], **{**shown, **options})
    arguments = (batches(3), batches(3)) if stage == "fit" else (batches(3),)
    getattr(trainer, stage)(Flat(), *arguments, ckpt_path=ckpt_path)
    begins = ("Resumed", "Training has ended", "validate:")
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(begins)]


def test_early_stopping_says_which_value_and_what_is_saved(tmp_path, capsys):
    def save(trainer, *_):
        if trainer.global_step == 8:
            trainer.save_checkpoint(tmp_path / "it.ckpt")
            trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)

    saving = LambdaCallback(on_train_batch_end=save)
    assert lines(capsys, EarlyStopping("val_loss", patience=2), saving) == [
        "Training has ended after step 9: EarlyStopping: val_loss is 1, and did not get better "
        "than 1 in 2 checks (patience=2, min_delta=0). The newest checkpoint holds step 8: "
        f"ckpt_path='{tmp_path}/it.ckpt' goes on from it."
    ]


@pytest.mark.parametrize(
    ("callbacks", "options", "end"),
    [
        ((), {"max_steps": 4}, "step 4: max_steps=4."),
        ((), {"max_time": timedelta(microseconds=1)}, "step 0: max_time='0:00:00.000001' is over."),
        (
            (STOPPING,),
            {},
            "step 1: trainer.should_stop was set.",
        ),
        ((Timer(timedelta(0)),), {}, "step 0: Timer: 0.0 s of training are over, so it stops."),
    ],
)
def test_limits_say_so(capsys, callbacks, options, end):
    (line,) = lines(capsys, *callbacks, **options)
    assert line == f"Training has ended after {end} Nothing of it is saved."


def test_a_resumed_run_says_from_where(tmp_path, capsys):
    saved = ModelCheckpoint(tmp_path, "it", every_n_train_steps=1)
    lines(capsys, saved, max_steps=5, enable_checkpointing=True)
    path = str(tmp_path / "it.ckpt")
    assert lines(capsys, ckpt_path=path, max_steps=6) == [
        f"Resumed from {path}: epoch 1, batch 2, step 5",
        "Training has ended after step 6: max_steps=6. Nothing is saved since it began: "
        f"ckpt_path={path!r} begins there again.",
    ]
    assert lines(capsys, ckpt_path=path, stage="validate") == [f"validate: weights of {path}"]


def test_who_wants_no_bar_gets_no_lines(tmp_path, capsys):
    saved = ModelCheckpoint(tmp_path, "it", every_n_train_steps=1)
    assert (
        lines(capsys, saved, max_steps=1, enable_checkpointing=True, enable_progress_bar=False)
        == []
    )
    assert (
        lines(capsys, ckpt_path=str(tmp_path / "it.ckpt"), max_steps=2, enable_progress_bar=False)
        == []
    )


def test_a_run_to_its_last_epoch_says_nothing(capsys):
    assert lines(capsys, max_epochs=1) == []
