import pytest

from core import ConfigurationError
from core.callbacks import GradientAccumulationScheduler, LambdaCallback, ModelCheckpoint
from support.tiny import Tiny, loader, make_trainer


def test_the_window_changes_at_epochs(tmp_path):
    steps = {}

    def note(trainer, module):
        steps[trainer.current_epoch] = trainer.global_step

    callbacks = GradientAccumulationScheduler({1: 4, 3: 2}), LambdaCallback(on_train_epoch_end=note)
    make_trainer(tmp_path, *callbacks, max_epochs=4, limit_val_batches=0).fit(Tiny(), loader())
    assert steps == {0: 4, 1: 5, 2: 6, 3: 8}


def test_gradients_are_averaged_over_the_window_of_an_epoch_also_of_a_run_that_is_resumed(tmp_path):
    options = {"limit_val_batches": 0, "max_epochs": 1}
    checkpoint = ModelCheckpoint(tmp_path / "c", "{step}", every_n_train_steps=1, save_top_k=-1)
    scheduled, fixed, resumed = Tiny(), Tiny(), Tiny()
    make_trainer(tmp_path, checkpoint, GradientAccumulationScheduler({0: 2}), **options).fit(
        scheduled, loader()
    )
    make_trainer(tmp_path, accumulate_grad_batches=2, **options).fit(fixed, loader())
    other = make_trainer(tmp_path, GradientAccumulationScheduler({0: 2}), **options)
    other.fit(resumed, loader(), ckpt_path=str(tmp_path / "c/step=1.ckpt"))
    assert other.global_step == 2
    assert (
        scheduled.layer.weight.tolist()
        == fixed.layer.weight.tolist()
        == resumed.layer.weight.tolist()
    )


def test_what_contradicts_it(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"accumulate_grad_batches=2, .*GradientAccumulationScheduler contra",
    ):
        make_trainer(
            tmp_path, GradientAccumulationScheduler({1: 2}), accumulate_grad_batches=2, max_epochs=1
        ).fit(Tiny(), loader())

    class Manual(Tiny):
        automatic_optimization = False

    trainer = make_trainer(
        tmp_path, GradientAccumulationScheduler({1: 2}), limit_val_batches=0, max_epochs=1
    )
    with pytest.raises(ConfigurationError, match=r"does nothing with automatic_optimization=False"):
        trainer.fit(Manual(), loader())


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        ({}, r"got no epoch; expected a dict such as \{4: 2\}"),
        ({-1: 2}, r"epoch=-1\): expected the number of an epoch, from 0"),
        ({2: 0}, r"scheduling\[2\]=0\): expected a number of batches, from 1"),
        ({2: 1.5}, r"scheduling\[2\]=1.5\): expected a number of batches, from 1"),
    ],
)
def test_arguments_that_cannot_be(scheduling, message):
    with pytest.raises(ConfigurationError, match=message):
        GradientAccumulationScheduler(scheduling)
