"""A loss that is NaN or infinite is told of once, where losses are read anyway, or ends the run if
that is wanted.
"""

import io
import math
import pickle
import warnings

import pytest
import torch
from rich.console import Console

from core import Callback, Logger, NonFiniteLossError
from core.callbacks import ModelCheckpoint, RichProgressBar
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from support.small_nets import Net, batches, quiet_trainer


class Silent(Logger):
    def log_metrics(self, metrics, step):
        pass


class Diverging(Net):
    """Its loss is multiplied by `factor` in batch 1, and handed over and logged as the test
    wants.
    """

    def __init__(self, factor=math.nan, wrap=lambda loss: loss, log=None):
        super().__init__()
        self.factor, self.wrap, self.log_options = factor, wrap, log

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 1:
            loss = loss * self.factor
        if self.log_options is not None:
            self.log("train_loss", loss, **self.log_options)
        return self.wrap(loss)


def fit(module, *, validation=None, **options):
    trainer = quiet_trainer(**{"max_epochs": 2, **options})
    trainer.fit(module, batches(4), validation)
    return trainer


def told(module, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(module, **options)
    texts = [str(warning.message) for warning in caught]
    # the second is torch's
    return [text for text in texts if "terminate_on_nan" in text or "requires_grad" in text]


def drawing():
    bar = RichProgressBar(
        console=Console(file=io.StringIO(), force_terminal=True), refresh_interval_s=1e-9
    )
    return {"callbacks": [bar], "enable_progress_bar": True}


# by default ---------------------------------------------------------------------------------------

RETURNED = "Diverging.training_step returned a loss of nan, seen at step"


@pytest.mark.parametrize(
    ("module", "options", "expected"),
    [
        ({}, {}, f"{RETURNED} 4, in epoch 0."),
        ({"wrap": lambda loss: {"loss": loss}}, {}, f"{RETURNED} 4, in epoch 0."),
        ({"factor": math.inf}, {}, f"{RETURNED} 4, in epoch 0."),  # later ones are NaN
        ({}, {"limit_train_batches": 2}, f"{RETURNED} 2, in epoch 0."),
        (
            {"factor": -math.inf},
            {"limit_train_batches": 2},
            "Diverging.training_step returned a loss of -inf, seen at step 2, in epoch 0.",
        ),
        ({}, {"max_steps": 3}, f"{RETURNED} 3, in epoch 0."),
        ({}, {"logger": Silent(), "log_every_n_steps": 3}, f"{RETURNED} 3, in epoch 0."),
        (
            {"log": {}},
            {"logger": Silent(), "log_every_n_steps": 2},
            "The logged loss 'train_loss' is nan, seen at step 2, in epoch 0.",
        ),
        (
            {"log": {"prog_bar": True}},
            drawing(),
            "The logged loss 'train_loss' is nan, seen at step 2, in epoch 0.",
        ),
    ],
)
def test_told_once_where_it_is_read(module, options, expected):
    [message] = told(Diverging(**module), **options)
    assert message.startswith(expected)
    assert "Trainer(terminate_on_nan=True) ends the run before such a loss reaches them" in message
    assert "detect_anomaly=True" in message


def test_the_class_has_the_name_that_its_author_gave_it():
    module = Diverging()
    # As `fully_shard` does.
    module.__class__ = type(
        "FSDPDiverging", (Diverging,), {"__module__": "torch.distributed.fsdp._fully_shard"}
    )
    with pytest.raises(
        NonFiniteLossError, match=r"^Diverging\.training_step returned a loss of nan"
    ):
        fit(module, terminate_on_nan=True)


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        ([3, 4, 5, 6, 7, 8], {}, "since step 4 or before"),
        ([7, 8], {}, "since step 8 at the latest, and not before step 4"),
        (
            [7, 8],
            {"logger": Silent(), "log_every_n_steps": 1},
            "since step 7 at the latest, and not before step 6",
        ),
        ([2, 3], {"logger": Silent(), "log_every_n_steps": 1}, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:DivergingFrom.training_step returned a loss of nan")
def test_a_line_at_the_end_of_a_training_that_ends_with_nan(steps, options, expected, capsys):
    class DivergingFrom(Diverging):
        """NaN in some steps only: what is NaN doesn't reach the weights."""

        def training_step(self, batch, batch_idx):
            loss = Net.training_step(self, batch, batch_idx)
            return loss + torch.full((), math.nan if self.global_step + 1 in steps else 0.0)

    fit(DivergingFrom(), **options)
    line = (
        f"The loss has been nan {expected}: weights that come of it are useless. Nothing of it "
        "is saved.\n"
    )
    assert capsys.readouterr().err == (line if expected else "")


@pytest.mark.parametrize("storage", [TorchCheckpointIO, DistributedCheckpointIO])
@pytest.mark.filterwarnings("ignore:LostAt.training_step returned a loss of nan")
def test_what_to_go_on_from_is_finite_and_from_before(tmp_path, capsys, storage):
    class LostAt(Net):
        """NaN from a step on, and so are its weights."""

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * math.nan if self.global_step == 2 else loss

    def told_to(save_top_k, ckpt_path=None):
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=save_top_k)
        options = {"callbacks": saver, "enable_checkpointing": True, "plugins": storage()}
        quiet_trainer(**{"max_epochs": 2, **options}).fit(LostAt(), batches(4), ckpt_path=ckpt_path)
        return capsys.readouterr().err.partition("useless. ")[2]

    path = str(tmp_path / "step=2.ckpt")
    assert (
        told_to(-1)
        == f"The checkpoint of step 2 has finite weights: ckpt_path={path!r} goes on from it.\n"
    )
    assert (
        told_to(0, path)
        == f"It began with finite weights: ckpt_path={path!r} begins there again.\n"
    )
    assert told_to(1) == "No checkpoint from before is known to have finite weights.\n"


def test_the_loss_of_a_validation():
    class Validating(Net):
        def validation_step(self, batch, batch_idx):
            self.log("Val_Loss", math.nan)
            self.log("share_of_hits", math.nan)

    seen = "The logged loss 'Val_Loss' is nan, seen at step"
    [message] = told(Validating(), validation=batches(1), num_sanity_val_steps=1)
    assert message.startswith(f"{seen} 0, in epoch 0.")
    trainer = quiet_trainer()
    for _ in range(2):  # in each stage
        with pytest.warns(UserWarning, match=seen):
            trainer.validate(Validating(), batches(1))


def test_nothing_is_told_of_good_losses():
    assert told(Diverging(1.0, log={"prog_bar": True}), **drawing()) == []


# if it shall end the run --------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}])
def test_the_run_ends_before_anything_is_learned(factor, options):
    class Keeping(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.weights = module.layer.weight.detach().clone()

        def on_exception(self, trainer, module, exception):
            self.exception = exception

    module, keeping = Diverging(factor), Keeping()
    message = (
        f"training_step returned a loss of {factor} for batch 1 of epoch 0, after 1 "
        "optimizer steps, and"
    )
    with pytest.raises(NonFiniteLossError, match=message) as caught:
        fit(module, terminate_on_nan=True, callbacks=[keeping], **options)
    assert keeping.exception is caught.value
    assert torch.equal(module.layer.weight, keeping.weights)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.epoch, copy.batch_idx, copy.global_step) == (0, 1, 1)
    assert isinstance(copy, ArithmeticError)


# manual optimization ------------------------------------------------------------------------------


class Manual(Diverging):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_a_loss_of_manual_optimization_that_is_not_returned_ends_the_run():
    module = Manual(math.nan)
    with pytest.raises(
        NonFiniteLossError,
        match=r"Manual.manual_backward got a loss of nan for batch 1 of epoch 0, after 1",
    ):
        fit(module, terminate_on_nan=True)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    assert fit(Manual(1.0), terminate_on_nan=True).global_step == 8


def test_a_logged_loss_that_is_shown_nowhere_is_told_at_the_end_of_the_epoch():
    [message] = told(Manual(math.nan, log={"logger": False, "on_epoch": True}))
    assert message.startswith(
        "The logged loss 'train_loss_epoch' is nan, seen at step 4, in epoch 0."
    )
