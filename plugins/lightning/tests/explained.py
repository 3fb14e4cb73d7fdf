"""Small programs for Lightning with a habit or a mistake each, and what becomes of them on
core-lightning.

    python plugins/lightning/tests/explained.py > theirs                                     # lightning==2.6.6
    core run --devices 1 --lightning plugins/lightning/tests/explained.py > ours
    diff theirs ours

The lines of a program that runs equal are the same in both, those of one that fails end with `!!`
in `ours`. `test_explaining.py` compares what `--explain` says of each with `PROGRAMS`.
"""

import logging
import os
import tempfile
import textwrap
import traceback
import warnings

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
EQUAL, DIFFERS, FAILS = "runs equal", "runs, these lines differ", "fails"
PROGRAMS = {}


def program(verdict, source):
    PROGRAMS[f"{len(PROGRAMS)} {verdict}"] = (verdict, HEAD + textwrap.dedent(source))


program(EQUAL, "fit()\n")
program(
    EQUAL,
    """
    class Own(Net):
        def on_train_epoch_end(self):
            self.helper()

        def helper(self):
            print(self.current_epoch, self.trainer.fit_loop.epoch_loop.batch_idx, self.trainer.num_training_batches)

    fit(Own(), cb.EarlyStopping("loss"))
    """,
)
program(
    EQUAL,
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
program(
    EQUAL,
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
program(
    EQUAL,
    """
    try:
        from lightning.pytorch.callbacks import NothingThere
    except ImportError:
        NothingThere = None
    from lightning.pytorch.callbacks import SpikeDetection
    fit()
    """,
)
program(
    EQUAL,
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
program(
    EQUAL,
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
program(
    DIFFERS,
    """
    class Zeroed(Net):
        def on_before_zero_grad(self, optimizer):
            print("zero")

        def on_before_backward(self, loss):
            print("backward")

    fit(Zeroed())
    """,
)
program(
    DIFFERS,
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
program(
    DIFFERS,
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
program(
    DIFFERS,
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
program(FAILS, "from lightning.pytorch.callbacks import NothingThere\n")
program(FAILS, "print(pl.Trainer(max_epoch=1, **QUIET))\n")
program(
    FAILS,
    """
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.fit(Net(), loader, nothing=1)
    """,
)
program(
    FAILS,
    """
    class Saving(cb.ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            super()._save_checkpoint(trainer, filepath)

    fit(None, Saving())
    """,
)
program(
    FAILS,
    """
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.fit_loop.epoch_loop.nothing_there
    """,
)
program(
    FAILS,
    """
    class Setting(cb.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.training = True

    fit(None, Setting())
    """,
)
program(
    FAILS,
    """
    class Helped(Net):
        def on_train_start(self):
            self.helper_that_is_missing()

    fit(Helped())
    """,
)
program(
    EQUAL,
    """
    class Own(cb.Callback):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer=trainer, pl_module=pl_module)

    fit(None, Own())
    """,
)
program(FAILS, "print(cb.SpikeDetection())\n")
program(
    FAILS,
    """
    class Saving(cb.ModelCheckpoint):
        def _update_best_and_save(self, current, trainer, monitor_candidates):
            super()._update_best_and_save(current, trainer, monitor_candidates)

    fit(None, Saving())
    """,
)
program(
    FAILS,
    """
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.enable_autolog_hparams = False
    """,
)


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.chdir(tempfile.mkdtemp())
    for name, (_, source) in PROGRAMS.items():
        print(f"== {name}", flush=True)
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        except Exception as error:
            print("!!", type(error).__name__)
            if "PRINT_ERRORS" in os.environ:
                traceback.print_exc()


if __name__ == "__main__":
    main()
