import contextlib
import os
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from core import CheckpointError, ConfigurationError
from core.callbacks import Callback, LambdaCallback, ModelCheckpoint
from core.checkpoint import (
    CheckpointIO,
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
)
from support.tiny import Tiny, loader, make_trainer


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.suffix != ".digest")


def read(path):
    return load_checkpoint(path)


def fit(
    root, checkpoint, *others, val_losses=(), module=None, validate=True, ckpt_path=None, **options
):
    trainer = make_trainer(root, checkpoint, *others, **{"max_epochs": 3, **options})
    module = module or Tiny(val_losses)
    trainer.fit(module, loader(), loader() if validate else None, ckpt_path=ckpt_path)
    return trainer


# when ---------------------------------------------------------------------------------------------


def test_by_default_the_newest_epoch_is_kept(tmp_path):
    trainer = make_trainer(tmp_path, max_epochs=3)
    trainer.fit(Tiny(), loader())
    checkpoint = trainer.callbacks[-1]
    assert names(tmp_path / "checkpoints") == ["epoch=2-step=12.ckpt"]
    assert checkpoint.best_model_path == str(tmp_path / "checkpoints/epoch=2-step=12.ckpt")
    assert checkpoint.best_model_score is None
    assert read(checkpoint.best_model_path)["progress"]["epoch"] == 3


@pytest.mark.parametrize(
    ("rhythm", "options", "steps"),
    [
        ({"every_n_epochs": 2}, {"max_epochs": 5}, [8, 16, 20]),  # and what training ends with
        ({"every_n_train_steps": 3}, {"max_epochs": 2}, [3, 6, 8]),
        ({"every_n_train_steps": 1}, {"max_epochs": 1, "accumulate_grad_batches": 2}, [1, 2]),
        ({"every_n_train_steps": 3, "monitor": "train_loss"}, {"max_epochs": 1}, [3, 4]),
        ({"save_on_train_epoch_end": True}, {"max_epochs": 2, "val_check_interval": 2}, [4, 8]),
        ({"monitor": "val_loss"}, {"max_epochs": 2, "val_check_interval": 2}, [2, 4, 6, 8]),
        ({"train_time_interval": timedelta(0)}, {"max_steps": 2}, [1, 2]),
        ({"train_time_interval": {"hours": 1}}, {"max_epochs": 1}, [4]),
    ],
)
def test_when_it_saves(tmp_path, rhythm, options, steps):
    fit(tmp_path, ModelCheckpoint(tmp_path / "c", "{step}", save_top_k=-1, **rhythm), **options)
    assert names(tmp_path / "c") == sorted(f"step={step}.ckpt" for step in steps)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [("step=4.ckpt", 4), ("step=8.ckpt", 8)]),
        (
            {
                "monitor": "val_loss",
                "every_n_train_steps": 4,
                "save_last": True,
                "enable_version_counter": False,
            },
            [("last.ckpt", 4), ("step=4.ckpt", 4), ("last.ckpt", 8), ("step=8.ckpt", 8)],
        ),
    ],
)
def test_what_is_due_is_written_once(tmp_path, options, expected):
    saves = []

    class Noting(TorchCheckpointIO):
        def save_checkpoint(self, state, path, *, collectives):
            saves.append((os.path.basename(path), state["progress"]["global_step"]))
            super().save_checkpoint(state, path, collectives=collectives)

    checkpoint = ModelCheckpoint(tmp_path / "c", "{step}", save_top_k=-1, **options)
    fit(tmp_path, checkpoint, plugins=[Noting()], max_epochs=2)
    assert saves == expected


def test_nothing_is_saved_in_a_sanity_check_or_without_a_step(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", save_on_train_epoch_end=False, save_last=True)
    fit(tmp_path, checkpoint, max_epochs=0, num_sanity_val_steps=2)
    assert not (tmp_path / "c").exists()
    assert checkpoint.best_model_path == checkpoint.last_model_path == ""


# which --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "best", "other", "score"), [("min", 3, 1, 1.0), ("max", 2, 0, 4.0)]
)
def test_the_best_are_kept(tmp_path, mode, best, other, score):
    checkpoint = ModelCheckpoint(
        tmp_path / "c", "{epoch}", monitor="val_loss", mode=mode, save_top_k=2
    )
    fit(tmp_path, checkpoint, val_losses=[3.0, 2.0, 4.0, 1.0], max_epochs=4)
    assert names(tmp_path / "c") == [f"epoch={other}.ckpt", f"epoch={best}.ckpt"]
    assert checkpoint.best_model_path == str(tmp_path / f"c/epoch={best}.ckpt")
    assert checkpoint.best_model_score.item() == score
    assert checkpoint.kth_best_model_path == str(tmp_path / f"c/epoch={other}.ckpt")


def test_what_is_not_a_number_is_the_worst(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}", monitor="val_loss", save_top_k=1)
    with pytest.warns(UserWarning, match="The logged loss 'val_loss' is nan"):
        fit(tmp_path, checkpoint, val_losses=[float("nan"), 2.0, float("nan")])
    assert names(tmp_path / "c") == ["epoch=1.ckpt"]


def test_none_all_and_the_last_one(tmp_path):
    fit(tmp_path, ModelCheckpoint(tmp_path / "none", save_top_k=0))
    assert not (tmp_path / "none").exists()
    checkpoint = ModelCheckpoint(tmp_path / "last", save_top_k=0, save_last=True)
    fit(tmp_path, checkpoint)
    assert names(tmp_path / "last") == ["last.ckpt"]
    assert checkpoint.last_model_path == str(tmp_path / "last/last.ckpt")
    assert read(tmp_path / "last/last.ckpt")["progress"]["global_step"] == 12


@pytest.mark.parametrize("save_last", [True, "link"])
def test_the_last_one_is_written_also_when_it_is_not_among_the_best(tmp_path, save_last):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}", monitor="val_loss", save_last=save_last)
    fit(tmp_path, checkpoint, val_losses=[1.0, 2.0, 3.0])
    assert names(tmp_path / "c") == ["epoch=0.ckpt", "last.ckpt"]
    assert not (tmp_path / "c/last.ckpt").is_symlink()
    assert [read(tmp_path / "c" / name)["progress"]["epoch"] for name in names(tmp_path / "c")] == [
        1,
        3,
    ]


@pytest.mark.parametrize("base", [TorchCheckpointIO, DistributedCheckpointIO])
def test_the_link_moves_before_what_it_led_to_goes(tmp_path, base):
    last, removed = tmp_path / "c/last.ckpt", []

    class Watching(base):
        def remove_checkpoint(self, path, *, collectives):
            removed.append((os.path.basename(path), names(tmp_path / "c")))
            super().remove_checkpoint(path, collectives=collectives)
            assert last.exists(), "killed now, it leaves a link to nothing"

    fit(
        tmp_path, ModelCheckpoint(tmp_path / "c", "{epoch}", save_last="link"), plugins=[Watching()]
    )
    assert removed == [
        (f"epoch={n}.ckpt", [f"epoch={n}.ckpt", f"epoch={n + 1}.ckpt", "last.ckpt"]) for n in (0, 1)
    ]
    assert os.readlink(last) == "epoch=2.ckpt"
    assert names(tmp_path / "c") == ["epoch=2.ckpt", "last.ckpt"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = fit(
            tmp_path / "resumed", ModelCheckpoint(), max_epochs=4, ckpt_path=last, plugins=[base()]
        )
    assert resumed.global_step == 16


def test_an_old_one_stays_until_the_window_in_which_it_was_replaced_has_ended(tmp_path):
    seen = []

    def note(trainer, module, outputs, batch, batch_idx):
        seen.append(
            (
                trainer.current_epoch,
                batch_idx,
                names(tmp_path / "c") if (tmp_path / "c").exists() else [],
            )
        )

    # Validation comes after the third batch, within the second window.
    checkpoint = ModelCheckpoint(tmp_path / "c", monitor="val_loss")
    options = {"val_check_interval": 3, "accumulate_grad_batches": 2, "max_epochs": 2}
    fit(
        tmp_path,
        checkpoint,
        LambdaCallback(on_train_batch_end=note),
        val_losses=[3.0, 2.0],
        **options,
    )
    assert (0, 3, []) in seen
    assert (1, 3, ["epoch=0-step=1.ckpt"]) in seen
    assert names(tmp_path / "c") == ["epoch=1-step=3.ckpt"]
    assert read(checkpoint.best_model_path)["progress"]["global_step"] == 4


def test_what_the_run_began_from_stays(tmp_path):
    fit(tmp_path, ModelCheckpoint(tmp_path / "c", "{epoch}"), max_epochs=1)
    fit(
        tmp_path,
        ModelCheckpoint(tmp_path / "c", "{epoch}"),
        max_epochs=3,
        ckpt_path=str(tmp_path / "c/epoch=0.ckpt"),
    )
    assert names(tmp_path / "c") == ["epoch=0.ckpt", "epoch=2.ckpt"]


class GoneError(Exception):
    """Ends a run as if it was killed: it saves and removes nothing any more."""


@pytest.mark.parametrize(
    "options",
    [{}, {"monitor": "train_loss"}, {"monitor": "train_loss", "save_top_k": 2}, {"save_top_k": -1}],
)
@pytest.mark.parametrize("is_removed", [True, False])
def test_a_run_that_goes_on_leaves_as_many_files_as_an_undisturbed_one(
    tmp_path, monkeypatch, options, is_removed
):
    """Also if the one before was killed between a save and the removal of what it replaced."""

    def train(name, *others, **more):
        checkpoint = ModelCheckpoint(
            tmp_path / name, "{step}", every_n_train_steps=2, save_last=True, **options
        )
        fit(tmp_path, checkpoint, *others, max_epochs=3, **more)
        return [os.path.basename(path) for path in checkpoint.best_k_models]

    def end(trainer, *rest):
        if trainer.global_step == 7:
            raise GoneError

    def retire(self, path, successor, **rest):
        if "step=6" in successor:
            raise GoneError
        self.remove_checkpoint(path, **rest)

    whole = train("whole")
    with monkeypatch.context() as patched:
        if not is_removed:
            patched.setattr(CheckpointIO, "retire_checkpoint", retire)
        with pytest.raises(GoneError):
            train("parts", LambdaCallback(on_train_batch_end=end))
    assert train("parts", ckpt_path="last") == whole
    assert names(tmp_path / "parts") == names(tmp_path / "whole")


# names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        ("{epoch}-{val_loss:.2f}", {}, "epoch=0-val_loss=0.50.ckpt"),
        ("{epoch:03d}", {}, "epoch=000.ckpt"),
        ("{step}-{val_loss:.1f}", {"auto_insert_metric_name": False}, "4-0.5.ckpt"),
        ("fixed", {}, "fixed.ckpt"),
        ("sub/{epoch}", {}, "epoch=0.ckpt"),
        ("{val/loss:.2f}", {}, "val_loss=0.25.ckpt"),  # a slash in a name makes no folder
    ],
)
def test_a_pattern(tmp_path, pattern, options, expected):
    class Slashed(Tiny):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("val/loss", 0.25)

    checkpoint = ModelCheckpoint(tmp_path / "c", pattern, **options)
    fit(tmp_path, checkpoint, module=Slashed([0.5]), max_epochs=1)
    assert os.path.basename(checkpoint.best_model_path) == expected
    assert os.path.exists(checkpoint.best_model_path)


@pytest.mark.parametrize(
    ("counts", "versions", "epoch"), [(True, ["-v1", "-v2", ""], 1), (False, [""], 3)]
)
def test_what_others_have_written_is_overwritten_only_without_versions(
    tmp_path, counts, versions, epoch
):
    for epochs in (1, 2, 3):
        checkpoint = ModelCheckpoint(
            tmp_path / "c", "fixed", save_last=True, enable_version_counter=counts
        )
        fit(tmp_path, checkpoint, max_epochs=epochs)
    assert names(tmp_path / "c") == [f"{n}{v}.ckpt" for n in ("fixed", "last") for v in versions]
    assert read(tmp_path / "c/fixed.ckpt")["progress"]["epoch"] == epoch


def test_equal_names_of_one_run_get_versions(tmp_path):
    fit(tmp_path, ModelCheckpoint(tmp_path / "c", "fixed", save_top_k=-1))
    assert names(tmp_path / "c") == ["fixed-v1.ckpt", "fixed-v2.ckpt", "fixed.ckpt"]


def test_another_name_for_the_last_one(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", save_top_k=0, save_last=True)
    checkpoint.CHECKPOINT_NAME_LAST = "last-{epoch}"
    fit(tmp_path, checkpoint)
    assert names(tmp_path / "c") == ["last-epoch=2.ckpt"]


def test_a_url(tmp_path):
    checkpoint = ModelCheckpoint(f"file://{tmp_path}/c", "{epoch}", save_last="link")
    fit(tmp_path, checkpoint)
    assert names(tmp_path / "c") == ["epoch=2.ckpt", "last.ckpt"]
    assert not (tmp_path / "c/last.ckpt").is_symlink()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"filename": "{vall_loss}"},
            r"has the field 'vall_loss', which was not logged; known are 'epoch', ",
        ),
        ({"filename": "{val_loss:d}"}, r"formats 'val_loss' by 'd', and Unknown format code"),
        (
            {"monitor": "vall_loss"},
            r"ModelCheckpoint monitors 'vall_loss', which was not logged; logged was 'epoch', "
            r"'step', 'train_loss', 'val_loss'\. Did you mean 'val_loss'\? Call "
            r"self\.log\('vall_loss', \.\.\.\)",
        ),
    ],
)
def test_names_that_were_not_logged(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, ModelCheckpoint(**options))


# monitors -----------------------------------------------------------------------------------------


def scores(checkpoint):
    return {
        os.path.basename(path): round(float(score), 6)
        for path, score in checkpoint.best_k_models.items()
    }


@pytest.mark.parametrize(
    ("rhythm", "options", "expected"),
    [
        ({"every_n_train_steps": 2}, {}, {4: 3.0, 8: 2.0, 12: 1.0}),
        (
            {"every_n_train_steps": 2},
            {"val_check_interval": 2},
            {2: 3.0, 4: 2.0, 6: 1.0, 8: 0.5, 10: 0.4, 12: 0.3},
        ),
        ({"every_n_train_steps": 3}, {"val_check_interval": 2}, {4: 2.0, 6: 1.0, 10: 0.4, 12: 0.3}),
        ({"every_n_train_steps": 3}, {"num_sanity_val_steps": 1}, {4: 3.0, 8: 2.0, 12: 1.0}),
        ({"train_time_interval": timedelta(0)}, {}, {4: 3.0, 8: 2.0, 12: 1.0}),
        (
            {"save_on_train_epoch_end": True},
            {"check_val_every_n_epoch": 2, "max_epochs": 4},
            {8: 3.0, 16: 2.0},
        ),
        ({"every_n_train_steps": 2, "save_top_k": 1}, {}, {12: 1.0}),
    ],
)
def test_what_is_due_is_saved_as_it_is_validated_next(tmp_path, rhythm, options, expected):
    checkpoint = ModelCheckpoint(
        tmp_path / "c", "{step}", monitor="val_loss", **{"save_top_k": -1, **rhythm}
    )
    fit(tmp_path, checkpoint, val_losses=[3.0, 2.0, 1.0, 0.5, 0.4, 0.3], **options)
    assert scores(checkpoint) == {f"step={step}.ckpt": score for step, score in expected.items()}
    for step in expected:
        assert read(tmp_path / f"c/step={step}.ckpt")["progress"]["global_step"] == step


@pytest.mark.parametrize("validate", [True, False])
def test_the_mean_of_a_training_epoch_is_waited_for(tmp_path, validate):
    class Counting(Tiny):
        def training_step(self, batch, batch_idx):
            self.log("mean", float(self.current_epoch), on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    checkpoint = ModelCheckpoint(
        tmp_path / "c", "{step}", monitor="mean", every_n_train_steps=2, save_top_k=-1
    )
    fit(tmp_path, checkpoint, module=Counting(), max_epochs=2, validate=validate)
    assert scores(checkpoint) == {"step=4.ckpt": 0.0, "step=8.ckpt": 1.0}


def test_what_no_validation_has_judged_before_the_end_is_told(tmp_path):
    options = {"val_losses": [1.0], "max_steps": 7}
    checkpoint = ModelCheckpoint(
        tmp_path / "c", "{step}", monitor="val_loss", every_n_train_steps=2, save_top_k=-1
    )
    with pytest.warns(
        UserWarning,
        match=r"not kept what was due before training ended with step 7: no validation came",
    ):
        fit(tmp_path, checkpoint, **options)
    assert scores(checkpoint) == {"step=4.ckpt": 1.0}
    checkpoint = ModelCheckpoint(
        tmp_path / "d", "{step}", monitor="val_loss", every_n_train_steps=2, save_last=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(tmp_path, checkpoint, **options)
    assert names(tmp_path / "d") == ["last.ckpt", "step=4.ckpt"]
    assert read(tmp_path / "d/last.ckpt")["progress"]["global_step"] == 7


def test_a_run_goes_on_with_a_save_that_waits(tmp_path):
    def make():
        return ModelCheckpoint(
            tmp_path / "c", "{step}", monitor="val_loss", every_n_train_steps=2, save_last=True
        )

    never = r"has kept nothing as the best: it monitors 'val_loss', which was not logged"
    with pytest.warns(UserWarning, match=never):
        fit(tmp_path, make(), max_steps=2, val_check_interval=3)
    assert names(tmp_path / "c") == ["last.ckpt"]
    resumed = make()
    options = {"max_steps": 3, "val_check_interval": 3, "ckpt_path": tmp_path / "c/last.ckpt"}
    fit(tmp_path, resumed, val_losses=[1.0], **options)
    assert scores(resumed) == {"step=3.ckpt": 1.0}


def test_counters_may_be_monitored(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", monitor="step", mode="max")
    fit(tmp_path, checkpoint, validate=False)
    assert checkpoint.best_model_score == 12


# state --------------------------------------------------------------------------------------------


def test_checkpoints_of_another_folder_are_not_touched(tmp_path):
    fit(
        tmp_path,
        ModelCheckpoint(tmp_path / "a", "{epoch}", monitor="val_loss"),
        val_losses=[1.0],
        max_epochs=1,
    )
    resumed = ModelCheckpoint(tmp_path / "b", "{epoch}", monitor="val_loss")
    fit(
        tmp_path,
        resumed,
        val_losses=[0.5],
        max_epochs=2,
        ckpt_path=str(tmp_path / "a/epoch=0.ckpt"),
    )
    assert names(tmp_path / "a") == ["epoch=0.ckpt"]
    assert names(tmp_path / "b") == ["epoch=1.ckpt"]


def test_two_that_cannot_be_told_apart(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"Two callbacks have the state key .*Override state_key"
    ):
        make_trainer(tmp_path, ModelCheckpoint("a"), ModelCheckpoint("b"))


def test_checkpoints_hold_what_callbacks_after_them_in_the_list_have_reached(tmp_path):
    class Count(Callback):
        count = 0

        def on_train_epoch_end(self, trainer, module):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

    class Late(Count):
        runs_last = True

    checkpoint = ModelCheckpoint(tmp_path / "c")
    trainer = fit(tmp_path, checkpoint, Count(), Late())
    assert trainer.callbacks[-1] is checkpoint
    saved = read(checkpoint.best_model_path)["callbacks"]
    assert [saved[name]["state"]["count"] for name in ("Count", "Late")] == [3, 3]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_behind", [False, True])
def test_each_of_two_knows_what_the_other_has_judged(tmp_path, monkeypatch, is_behind, is_killed):
    """From the file of either a run goes on with what both had; also if it was killed between the
    two files.
    """

    def make():
        first = ModelCheckpoint(tmp_path / "newest", "{epoch}", save_last=True)
        second = ModelCheckpoint(tmp_path / "best", "{epoch}", monitor="val_loss", save_last="link")
        return second, [first, second] if is_behind else [second, first]

    class Killing(TorchCheckpointIO):
        written = 0

        def save_checkpoint(self, state, path, *, collectives):
            if state["progress"]["epoch"] == 2:
                self.written += 1
                if is_killed and self.written > (2 if is_behind else 1):
                    raise GoneError
            super().save_checkpoint(state, path, collectives=collectives)

    losses = [3.0, 1.0, 2.0]
    with pytest.raises(GoneError) if is_killed else contextlib.nullcontext():
        fit(tmp_path, *make()[1], val_losses=losses, max_epochs=2, plugins=[Killing()])
    second, both = make()
    module = Tiny(losses)
    module.num_validations = 2
    name = "newest/epoch=1.ckpt" if is_behind else "best/epoch=1.ckpt"
    fit(
        tmp_path,
        *both,
        module=module,
        max_epochs=3,
        ckpt_path=str(tmp_path / name),
        plugins=[TorchCheckpointIO()],
    )
    assert scores(second) == {"epoch=1.ckpt": 1.0}
    assert read(second.best_model_path)["progress"]["epoch"] == 2
    assert names(tmp_path / "best") == ["epoch=1.ckpt", "last.ckpt"]
    assert set(names(tmp_path / "newest")) >= {"epoch=2.ckpt", "last.ckpt"}


def test_equal_names_of_two_get_versions_before_anything_is_written(tmp_path):
    """Validation comes within the accumulation window, at whose end both are written."""
    both = [
        ModelCheckpoint(tmp_path / "c", monitor="val_loss", mode=mode) for mode in ("min", "max")
    ]
    fit(tmp_path, *both, val_check_interval=3, accumulate_grad_batches=2, max_epochs=1)
    assert both[0].best_model_path != both[1].best_model_path
    assert names(tmp_path / "c") == sorted(os.path.basename(each.best_model_path) for each in both)


def overwriting(folder, name, monitor):
    return ModelCheckpoint(folder, name, monitor=monitor, enable_version_counter=False)


@pytest.mark.parametrize("is_known", [True, False])
def test_two_with_one_file(tmp_path, is_known):
    """Before work, or where names differ until they are filled."""
    one = overwriting(tmp_path / "c", "epoch=0", "val_loss")
    other = overwriting(tmp_path / "c", "epoch=0" if is_known else "{epoch}", "train_loss")
    with pytest.raises(
        ConfigurationError,
        match=r"would write .*epoch=0.*: each would replace what the other keeps",
    ):
        fit(tmp_path, one, other, max_epochs=1)
    assert not (tmp_path / "c").exists()


def test_one_folder_has_several_spellings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = overwriting("c", "a", "val_loss"), overwriting("./c", "a", "train_loss")
    with pytest.raises(ConfigurationError, match=r"each would replace what the other keeps"):
        fit(tmp_path, one, other, max_epochs=1)


def test_two_that_count_versions_or_have_names_of_their_own(tmp_path):
    both = overwriting(tmp_path, "a", "val_loss"), overwriting(tmp_path, "b", "train_loss")
    for each in both:
        each.save_last = True
    fit(tmp_path, *both, ModelCheckpoint(tmp_path, "c"), max_epochs=1)
    assert names(tmp_path) == ["a.ckpt", "b.ckpt", "c.ckpt", "last.ckpt"]


def test_an_exception_does_not_replace_the_best(tmp_path):
    checkpoint = overwriting(tmp_path, "best", "val_loss")
    checkpoint.save_on_exception = True

    def end(trainer, *rest):
        if trainer.global_step == 5:
            raise GoneError

    with pytest.raises(GoneError):
        fit(tmp_path, checkpoint, LambdaCallback(on_train_batch_end=end))
    steps = [
        read(tmp_path / name)["progress"]["global_step"]
        for name in ("best.ckpt", "exception-epoch=1-step=5.ckpt")
    ]
    assert steps == [4, 5]


def test_a_later_fit_begins_anew(tmp_path):
    """With another Trainer or module. The same ones count on."""
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}", monitor="val_loss", save_last=True)
    trainer = fit(tmp_path, checkpoint, val_losses=[0.1], max_epochs=3, max_steps=4)
    trainer.options = replace(trainer.options, max_steps=8)
    trainer.fit(trainer.module, loader(), loader())
    assert scores(checkpoint) == {"epoch=0.ckpt": 0.1}
    fit(tmp_path, checkpoint, val_losses=[5.0, 3.0], max_epochs=2)
    assert scores(checkpoint) == {"epoch=1.ckpt": 3.0}
    assert checkpoint.last_model_path.endswith("last-v1.ckpt")
    fit(tmp_path, checkpoint, val_losses=[4.0], max_epochs=3, ckpt_path="best")
    assert scores(checkpoint) == {"epoch=1.ckpt": 3.0}


def test_states_are_found_wherever_the_classes_stand(tmp_path):
    """A class that was pickled by value, as cloudpickle does it, has another `__qualname__` where
    it is unpickled.
    """
    loaded = []

    def callbacks(where):
        class Other(Callback):
            def state_dict(self):
                return {"is": "kept"}

            def load_state_dict(self, state):
                loaded.append(state)

        class Saves(ModelCheckpoint):
            def load_state_dict(self, state):
                loaded.append("saves")

        for kind in (Other, Saves):
            kind.__qualname__ = f"{where}{kind.__name__}"
        return Saves(tmp_path / "c", save_top_k=-1), Other()

    trainer = fit(tmp_path, *callbacks("main.<locals>."))
    path = trainer.callbacks[-1].best_model_path
    fit(tmp_path, *callbacks(""), ckpt_path=path, max_epochs=4)
    assert loaded == [{"is": "kept"}, "saves"]


# weights only -------------------------------------------------------------------------------------


def test_weights_only(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", save_weights_only=True)
    trainer = fit(tmp_path, checkpoint)
    saved = read(checkpoint.best_model_path)
    assert sorted(saved) == ["format", "model", "module_section"]
    other = Tiny()
    other.layer.weight.data.fill_(9.0)
    trainer.validate(other, loader(), ckpt_path=checkpoint.best_model_path)
    assert torch.equal(other.layer.weight, saved["model"]["layer.weight"])
    with pytest.raises(
        CheckpointError, match=r"holds weights only, so training can't go on from it"
    ):
        fit(tmp_path, ModelCheckpoint(), ckpt_path=checkpoint.best_model_path, max_epochs=9)


def test_verbose(tmp_path, capsys):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}", verbose=True)
    fit(tmp_path, checkpoint, max_epochs=1)
    assert (
        f"ModelCheckpoint: step 4 is saved in {tmp_path}/c/epoch=0.ckpt" in capsys.readouterr().out
    )
    fit(tmp_path, ModelCheckpoint(tmp_path / "quiet"), max_epochs=1)
    assert capsys.readouterr().out == ""


# bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "best"}, r"ModelCheckpoint\(mode='best'\): expected 'min'"),
        ({"save_top_k": -2}, r"save_top_k=-2\): expected a number, or -1 for all"),
        ({"save_top_k": 3}, r"save_top_k=3\) can't tell which are best without monitor"),
        ({"save_last": "copy"}, r"save_last='copy'\): expected True or False or 'link'"),
        ({"every_n_epochs": -1}, r"every_n_epochs=-1\): expected a positive number"),
        (
            {"every_n_epochs": 1, "every_n_train_steps": 5},
            r"got more than one of every_n_train_steps, every_n_epochs and .*; expected one of them",
        ),
        (
            {"train_time_interval": "1:00"},
            r"train_time_interval='1:00': expected a timedelta, .* or 'DD:HH:MM:SS'",
        ),
    ],
)
def test_arguments_that_cannot_be(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ModelCheckpoint(**options)


def test_one_that_was_switched_off(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"enable_checkpointing=False, and callbacks has a ModelCheckpoint"
    ):
        make_trainer(tmp_path, ModelCheckpoint(), enable_checkpointing=False)
