"""The report on a program before it is run."""

import textwrap

import pytest
from click.testing import CliRunner

from core.cli.commands import command
from core_lightning.script.explaining import explain

HEAD = """
import torch
import lightning.pytorch as pl
from lightning.pytorch import callbacks as cb
from torch import nn
from torch.utils.data import DataLoader

QUIET = dict(accelerator="cpu", devices=1, enable_progress_bar=False, enable_model_summary=False, logger=False)
loader = DataLoader(torch.ones(4, 2), batch_size=1)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(net=None, *callbacks, **options):
    trainer = pl.Trainer(max_epochs=1, callbacks=list(callbacks), **{**QUIET, **options})
    trainer.fit(net or Net(), loader)
    print(trainer.global_step, {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


"""


def test_what_is_missing_is_listed_where_it_stands(tmp_path):
    PROGRAM = """
import lightning as L
import pytorch_lightning.callbacks as cb
import torch
from lightning.pytorch.callbacks import EarlyStopping, SpikeDetection
from helpers import make


class Net(L.LightningModule):
    def configure_sharded_model(self):
        self.helper()


trainer = L.Trainer(max_epochs=1, max_epoch=2, callbacks=[cb.ModelCheckpoint(), cb.Nothing.of(3)])
print(L.pytorch.loggers.CSVLogger, L.fabric.plugins.nothing, torch.nn.Linear, trainer.anything, trainer.callbacks)
trainer.fit_loop = trainer.is_last_batch = SpikeDetection()
"""
    script, helpers = tmp_path / "train.py", tmp_path / "helpers.py"
    script.write_text(PROGRAM, encoding="utf-8")
    helpers.write_text("from lightning.pytorch.serve import Nothing\n", encoding="utf-8")
    text, runs = explain(script)
    assert not runs
    *lines, verdict = text.splitlines()
    expected = [
        f"{helpers}:1: core-lightning has no lightning.pytorch.serve.Nothing",
        f"{script}:10: nothing calls configure_sharded_model here: not called, with a warning",
        f"{script}:11: core-lightning's LightningModule has no helper",
        f"{script}:14: core-lightning has no Trainer(max_epoch=)",
        f"{script}:14: core-lightning has no lightning.pytorch.callbacks.Nothing",
        f"{script}:15: core-lightning has no lightning.fabric.plugins.nothing",
        f"{script}:15: core-lightning's Trainer has no anything",
        f"{script}:16: SpikeDetection is not on core, and making one is an error",
        f"{script}:16: Trainer.is_last_batch can't be set here",
    ]
    assert len(lines) == len(expected)
    assert all(map(str.startswith, sorted(lines), sorted(expected))), lines
    assert verdict == f"{script}: fails at helpers.py:1"


@pytest.fixture
def judge(tmp_path):
    """A function that compares the verdict on a small program with the one that it deserves.

    A program that runs equal prints the same by `python`, with lightning==2.6.6, and by `core run
    --devices 1 --lightning`; one that fails ends there with an error. pytest's `--basetemp` keeps
    the programs.
    """

    def judge(verdict, source):
        script = tmp_path / "train.py"
        script.write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
        text, runs = explain(script)
        assert text.splitlines()[-1].startswith(f"{script}: {verdict}"), text
        assert runs == (verdict != "fails")

    return judge


def test_a_plain_run(judge):
    judge("runs equal", "fit()\n")


def test_a_module_with_a_helper_and_early_stopping(judge):
    judge(
        "runs equal",
        """
        class Own(Net):
            def on_train_epoch_end(self):
                self.helper()

            def helper(self):
                print(self.current_epoch, self.trainer.fit_loop.epoch_loop.batch_idx, self.trainer.num_training_batches)

        fit(Own(), cb.EarlyStopping("loss"))
        """,
    )


def test_manual_optimization_and_a_trainer_that_fits_again(judge):
    judge(
        "runs equal",
        """
        class Manual(Net):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch, batch_idx):
                optimizer = self.optimizers()
                self.toggle_optimizer(optimizer)
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)

        trainer = pl.Trainer(max_epochs=1, **QUIET)
        trainer.fit(Manual(), loader)
        trainer.limit_train_batches = 2
        trainer.fit_loop.max_epochs = 2
        trainer.fit(Manual(), loader)
        print(trainer.global_step)
        """,
    )


def test_a_buffer_and_a_part_that_is_added(judge):
    judge(
        "runs equal",
        """
        class Buffered(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1))
                self.add_module("other", nn.Linear(2, 1))

            def on_train_batch_end(self, outputs, batch, batch_idx):
                self.count += self.other(batch).detach().mean() * 0 + 1

        fit(net := Buffered())
        print(net.count.item())
        """,
    )


def test_an_import_that_may_fail(judge):
    judge(
        "runs equal",
        """
        try:
            from lightning.pytorch.callbacks import NothingThere
        except ImportError:
            NothingThere = None
        from lightning.pytorch.callbacks import SpikeDetection
        fit()
        """,
    )


def test_a_logger_of_the_program(judge):
    judge(
        "runs equal",
        """
        class Kept(pl.loggers.Logger):
            name, version = "kept", 0

            def log_metrics(self, metrics, step=None):
                pass

            def log_hyperparams(self, params, *args, **kwargs):
                pass

            def after_save_checkpoint(self, checkpoint_callback):
                print("saved")

        fit(logger=Kept())
        """,
    )


def test_an_attribute_that_the_trainer_may_lack(judge):
    judge(
        "runs equal",
        """
        class Counting(cb.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if hasattr(trainer, "nothing"):
                    print(trainer.nothing)
                trainer.mine = trainer.current_epoch
                super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

        fit(None, Counting())
        """,
    )


def test_hooks_of_backward_and_of_zeroed_gradients(judge):
    judge(
        "runs, these lines differ",
        """
        class Zeroed(Net):
            def on_before_zero_grad(self, optimizer):
                print("zero")

            def on_before_backward(self, loss):
                print("backward")

        fit(Zeroed())
        """,
    )


def test_a_loader_of_the_module(judge):
    judge(
        "runs, these lines differ",
        """
        class Loading(Net):
            def on_fit_start(self):
                print("start")

            def train_dataloader(self):
                print("loader")
                return loader

        pl.Trainer(max_epochs=1, **QUIET).fit(Loading())
        """,
    )


def test_a_stop_within_a_window(judge):
    judge(
        "runs, these lines differ",
        """
        class Stopping(cb.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx == 2:
                    trainer.should_stop = True

        trainer = pl.Trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[Stopping()], **QUIET)
        trainer.fit(Net(), loader)
        print(trainer.global_step)
        """,
    )


def test_hooks_after_an_error(judge):
    judge(
        "runs, these lines differ",
        """
        class Closing(cb.Callback):
            def on_exception(self, trainer, pl_module, exception):
                print("exception", trainer.state.status.value)

            def teardown(self, trainer, pl_module, stage):
                print("teardown")

        class Failing(Net):
            def on_train_start(self):
                raise ValueError("no")

        try:
            fit(Failing(), Closing())
        except ValueError as error:
            print(error)
        """,
    )


def test_a_callback_that_is_missing(judge):
    judge("fails", "from lightning.pytorch.callbacks import NothingThere\n")


def test_an_argument_of_the_trainer_that_is_missing(judge):
    judge("fails", "print(pl.Trainer(max_epoch=1, **QUIET))\n")


def test_an_argument_of_fit_that_is_missing(judge):
    judge(
        "fails",
        """
        trainer = pl.Trainer(max_epochs=1, **QUIET)
        trainer.fit(Net(), loader, nothing=1)
        """,
    )


def test_a_private_method_of_a_checkpoint(judge):
    judge(
        "fails",
        """
        class Saving(cb.ModelCheckpoint):
            def _save_checkpoint(self, trainer, filepath):
                super()._save_checkpoint(trainer, filepath)

        fit(None, Saving())
        """,
    )


def test_a_part_of_a_loop_that_is_missing(judge):
    judge(
        "fails",
        """
        trainer = pl.Trainer(max_epochs=1, **QUIET)
        trainer.fit_loop.epoch_loop.nothing_there
        """,
    )


def test_a_flag_that_is_set(judge):
    judge(
        "fails",
        """
        class Setting(cb.Callback):
            def on_train_start(self, trainer, pl_module):
                trainer.training = True

        fit(None, Setting())
        """,
    )


def test_a_helper_that_is_missing(judge):
    judge(
        "fails",
        """
        class Helped(Net):
            def on_train_start(self):
                self.helper_that_is_missing()

        fit(Helped())
        """,
    )


def test_a_callback_that_calls_its_base_by_name(judge):
    judge(
        "runs equal",
        """
        class Own(cb.Callback):
            def on_train_start(self, trainer, pl_module):
                super().on_train_start(trainer=trainer, pl_module=pl_module)

        fit(None, Own())
        """,
    )


def test_a_callback_that_is_refused(judge):
    judge("fails", "print(cb.SpikeDetection())\n")


def test_another_private_method_of_a_checkpoint(judge):
    judge(
        "fails",
        """
        class Saving(cb.ModelCheckpoint):
            def _update_best_and_save(self, current, trainer, monitor_candidates):
                super()._update_best_and_save(current, trainer, monitor_candidates)

        fit(None, Saving())
        """,
    )


def test_an_attribute_that_is_set(judge):
    judge(
        "fails",
        """
        trainer = pl.Trainer(max_epochs=1, **QUIET)
        trainer.enable_autolog_hparams = False
        """,
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--lightning", "--explain"], 0, "train.py: runs equal\n"),
        (["--explain"], 2, "--explain needs a prelude"),
    ],
)
def test_core_run_reports_and_runs_nothing(tmp_path, monkeypatch, options, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from lightning.pytorch import Trainer\nraise SystemExit(7)\n", encoding="utf-8"
    )
    done = CliRunner().invoke(command, ["run", *options, "train.py"])
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_a_class_whose_package_is_not_installed_is_not_called_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning.pytorch.loggers import CometLogger\n"
        "from lightning.pytorch.strategies import DeepSpeedStrategy\n"
        "logger, strategy = CometLogger(), DeepSpeedStrategy(stage=2)\n",
        encoding="utf-8",
    )
    assert explain(script) == (f"{script}: runs equal", True)


def test_arguments_that_are_not_taken_by_position_are_reported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning.pytorch import Trainer\n"
        "from lightning.pytorch.tuner import Tuner\n"
        "tuner = Tuner(Trainer(max_epochs=1))\n"
        "options = []\n"
        "tuner.lr_find(None, *options)\n"
        "tuner.lr_find(None, None, None, None, None, 'fit', 1e-6, *options)\n"
        "Trainer('cpu')\n",
        encoding="utf-8",
    )
    text, runs = explain(script)
    assert not runs
    said = "too many positional arguments"
    assert text.splitlines()[:-1] == [
        f"{script}:6: core-lightning's Tuner.lr_find: {said}",
        f"{script}:7: core-lightning's Trainer: {said}",
    ]
