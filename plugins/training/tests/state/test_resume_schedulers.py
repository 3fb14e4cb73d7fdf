"""A run goes on with the learning-rate schedulers that its checkpoint was saved with, or says what
differs.
"""

import warnings

import pytest
import torch
from torch.optim import lr_scheduler

from core import CheckpointError, Trainer
from core.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from support.small_nets import QUIET, Net, batches, fit


def constant(optimizer):
    return lr_scheduler.ConstantLR(optimizer, 0.5, 2)


def exponential(optimizer):
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


def cosine(optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, 10)


def sequence(*makers):
    def make(optimizer):
        return lr_scheduler.SequentialLR(
            optimizer, [maker(optimizer) for maker in makers], [1, 2][: len(makers) - 1]
        )

    return make


def chain(*makers):
    return lambda optimizer: lr_scheduler.ChainedScheduler(
        [maker(optimizer) for maker in makers], optimizer=optimizer
    )


KINDS = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    "cosine": cosine,
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "factors": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "plateau": lr_scheduler.ReduceLROnPlateau,
    "sequence": sequence(constant, exponential),
    "sequence of others": sequence(constant, cosine),
    "longer sequence": sequence(constant, exponential, exponential),
    "chain": chain(constant, exponential),
}


class Scheduled(Net):
    def __init__(self, *makers):
        super().__init__()
        self.makers = makers

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [
            {"scheduler": make(optimizer), "monitor": "loss"} for make in self.makers
        ]


def saved_by(path, *makers, **options):
    trainer = fit(Scheduled(*makers), **options)
    trainer.save_checkpoint(path)
    return path


def go_on(path, *makers, **options):
    trainer = fit(Scheduled(*makers), ckpt_path=path, max_epochs=2, **options)
    return trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return {kind: str(saved_by(folder / f"{kind}.ckpt", make)) for kind, make in KINDS.items()}


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (
            "step",
            "cosine",
            "torch.optim.lr_scheduler.StepLR, and torch.optim.lr_scheduler.CosineAnnealingLR is to "
            "go",
        ),
        (
            "lambda",
            "factors",
            "LambdaLR, and torch.optim.lr_scheduler.MultiplicativeLR is to go on",
        ),
        ("plateau", "step", "ReduceLROnPlateau, and torch.optim.lr_scheduler.StepLR is to go on"),
        (
            "sequence",
            "chain",
            "SequentialLR, and torch.optim.lr_scheduler.ChainedScheduler is to go on",
        ),
        (
            "sequence",
            "sequence of others",
            "ExponentialLR, and torch.optim.lr_scheduler.CosineAnnealingLR is to go on",
        ),
        (
            "sequence",
            "longer sequence",
            "SequentialLR that is made of 2 schedulers, not of 3, and torch.optim",
        ),
    ],
)
def test_another_class_is_refused_by_name(saved, before, after, named):
    with pytest.raises(
        CheckpointError, match=f"The scheduler state in the checkpoint is of .*{named}"
    ) as caught:
        go_on(saved[before], KINDS[after])
    assert "start a new run from its weights" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_class_goes_on(saved, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert go_on(saved[kind], KINDS[kind]).progress.epoch == 2


def test_of_one_kind_there_is_a_warning(tmp_path):
    class Halving(lr_scheduler.StepLR):
        """A class of the user's, of a kind of torch's."""

    path = saved_by(tmp_path / "c.ckpt", KINDS["step"])
    with pytest.warns(
        UserWarning, match=r"is of torch.optim.lr_scheduler.StepLR, and .*Halving goes on from it"
    ):
        go_on(path, lambda optimizer: Halving(optimizer, 1))


def test_another_number_of_them(tmp_path, saved):
    with pytest.raises(
        CheckpointError,
        match=r"the states of 1 learning-rate schedulers, and configure_optimizers made 2",
    ):
        go_on(saved["step"], KINDS["step"], KINDS["step"])
    with pytest.warns(UserWarning, match="and configure_optimizers made none: rates stay as saved"):
        go_on(saved["step"])
    with pytest.warns(
        UserWarning, match=r"has no state of a .*StepLR begins anew, at its first step"
    ):
        go_on(saved_by(tmp_path / "none.ckpt"), KINDS["step"])


def test_a_run_whose_callback_has_replaced_them_goes_on_in_silence(tmp_path):
    def averaging():
        return StochasticWeightAveraging(0.05, swa_epoch_start=0)

    path = saved_by(tmp_path / "c.ckpt", KINDS["step"], callbacks=averaging())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go_on(path, KINDS["step"], callbacks=averaging())


def test_a_callback_that_the_program_lacks_is_named(tmp_path):
    stopping = EarlyStopping("loss")
    saving = {"enable_checkpointing": True}
    trainer = Trainer(
        max_epochs=1, callbacks=[stopping, ModelCheckpoint(tmp_path / "m")], **QUIET | saving
    )
    trainer.fit(Scheduled(), batches())
    with pytest.warns(
        UserWarning,
        match=r"the state of EarlyStopping\{.*\}, and no callback of this Trainer takes it",
    ) as told:
        go_on(trainer.checkpoint_callback.best_model_path)
    assert not any("ModelCheckpoint" in str(warning.message) for warning in told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go_on(trainer.checkpoint_callback.best_model_path, callbacks=EarlyStopping("loss"))
