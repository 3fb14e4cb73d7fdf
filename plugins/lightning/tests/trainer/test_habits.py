"""Habits of programs for Lightning, each of which ended in an error. What is expected is what
Lightning does.
"""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bf16-mixed", "MixedPrecision"),
        ("64-true", "DoublePrecision"),
        ("bf16-true", "HalfPrecision"),
        ("32-true", "Precision"),
    ],
)
def test_a_precision_has_lightnings_class_and_name(installed, lit, name, kind):
    found = lit.make_trainer(precision=name).precision_plugin
    assert isinstance(found, getattr(installed("lightning.pytorch.plugins"), kind))
    assert found.precision == name


def test_a_callback_without_a_state_no_logs_and_a_summary_of_its_own(lit, capsys):
    class Stateless(lit.pl.Callback):
        def state_dict(self):
            return None

    callbacks = [Stateless(), lit.pl.callbacks.ModelSummary()]
    trainer = lit.make_trainer(
        log_every_n_steps=0, callbacks=callbacks, max_epochs=1, enable_checkpointing=True
    )
    trainer.fit(lit.Plain(), lit.load(), lit.load())
    assert Path(trainer.checkpoint_callback.best_model_path).exists()
    # without a monitor the newest
    trainer.test(lit.Plain(), lit.load(), ckpt_path="best", verbose=False)
    assert "trainable parameters" in capsys.readouterr().out


def test_loaders_that_were_passed_are_read_again_where_reloading_was_asked_for(lit):
    assert lit.fit(lit.Plain(), reload_dataloaders_every_n_epochs=1).global_step == 8


@pytest.mark.filterwarnings("ignore:precision='16-mixed' is bf16-mixed")
def test_fabric_takes_optimizers_before_their_module_and_float16_on_a_cpu(installed):
    fabric = installed("lightning.fabric").Fabric(
        accelerator="cpu", devices=1, precision="16-mixed"
    )
    assert fabric.strategy.precision_plugin.name == "bf16-mixed"
    module = torch.nn.Linear(2, 1, bias=False)
    before = module.weight.detach().clone()
    optimizer = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), 0.5))
    model = fabric.setup_module(module)
    fabric.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    torch.testing.assert_close(module.weight.detach(), before - 0.5)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="pip install tensorboard"
)
def test_logs_go_to_tensorboard_unless_it_is_not_installed(lit, monkeypatch):
    trainer = lit.make_trainer(logger=True)
    assert type(trainer.logger).__name__ == "TensorBoardLogger"
    trainer.logger.experiment.add_scalar("own", 1.0, 0)
    trainer.logger.log_hyperparams({"lr": 0.1}, {"score": 0.5})
    trainer.logger.finalize("success")
    (events,) = Path(trainer.logger.log_dir).glob("events*")
    assert b"score" in events.read_bytes()
    assert b"hp_metric" not in events.read_bytes()
    monkeypatch.setattr("core_lightning.loggers._loggers.find_spec", lambda name: None)
    assert type(lit.make_trainer(logger=True).logger).__name__ == "CSVLogger"


def test_rows_are_written_through_the_experiment(installed, tmp_path):
    logger = installed("lightning.pytorch.loggers").CSVLogger(tmp_path)
    logger.experiment.log_metrics({"a": 1.5}, step=3)
    logger.experiment.save()
    assert (tmp_path / "lightning_logs/version_0/metrics.csv").read_text(
        encoding="utf-8"
    ) == "step,a\n3,1.5\n"


def test_callbacks_may_be_any_collection_or_nothing(lit):
    """Hydra makes a list of its own class; `early and [EarlyStopping(...)]` may be False."""
    own = lit.pl.callbacks.ModelSummary()
    assert lit.make_trainer(callbacks=iter([own])).callbacks == [own]
    assert lit.make_trainer(callbacks=False).callbacks == []


def test_a_callback_logs_as_the_module_does(lit):
    class Logs(torch.nn.Module, lit.pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            self.log("seen", 1.0)
            self.log_dict({"twice": 2.0})

    callback = Logs()
    trainer = lit.fit(lit.Plain(), max_steps=1, callbacks=callback)
    assert (trainer.callback_metrics["seen"], trainer.callback_metrics["twice"]) == (1, 2)
    assert not hasattr(callback, "log")
