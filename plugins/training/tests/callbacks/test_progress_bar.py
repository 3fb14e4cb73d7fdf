import io
import os
import pickle
import pty
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from rich.console import Console

from core import ConfigurationError, Trainer
from core.callbacks import LambdaCallback, ProgressBar, RichProgressBar
from core_testing import programs
from core_testing.waiting import slowness
from core_training.callbacks.progress_bar.epoch_table import EpochTable
from core_training.callbacks.progress_bar.live_view import LiveView
from core_training.callbacks.progress_bar.view import ProgressTask, format_seconds, format_value
from support.tiny import Tiny, loader, make_trainer

PROGRAM = Path(__file__).with_name("bar_program.py")


def terminal(width=100):
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={})


def text_of(console):
    return without_control(console.file.getvalue())


def without_control(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def fit(root, bar, *others, module=None, **options):
    defaults = {"max_epochs": 2, "enable_progress_bar": True, "num_sanity_val_steps": 1}
    trainer = make_trainer(root, bar, *others, **{**defaults, **options})
    trainer.fit(module or Tiny([0.5, 0.25]), loader(), loader())
    return trainer


# redrawn ------------------------------------------------------------------------------------------


def test_bars_and_a_table(tmp_path):
    console = terminal()
    bar = RichProgressBar(console=console, refresh_interval_s=1e-9)
    trainer = fit(tmp_path, bar)
    trainer.test(Tiny(), loader())
    trainer.validate(Tiny([0.125]), loader())
    text = text_of(console)
    for shown in (
        "Sanity check",
        "Epoch 0/1",
        "Epoch 1/1",
        "Validation",
        "Test",
        "4/4",
        "it/s",
        "━",
    ):
        assert shown in text
    lines = [line.split() for line in text.splitlines()]
    assert ["epoch", "step", "time", "it/s", "train_loss", "val_loss"] in lines
    rows = [line for line in lines if len(line) == 6 and line[:1] in (["0"], ["1"])]
    assert [(row[0], row[1], row[5]) for row in rows] == [
        ("0", "4", "0.5000"),
        ("1", "8", "0.2500"),
    ]
    assert any(line.startswith("Test: test_loss 0.") for line in text.splitlines())
    assert "Validation: val_loss 0.1250" in text.splitlines()


def test_the_screen_is_left_in_order(tmp_path):
    def fail(*_):
        raise RuntimeError("broken")

    for hook in ("on_train_batch_end", "on_validation_batch_end"):
        console = terminal()
        with pytest.raises(RuntimeError):
            fit(tmp_path, RichProgressBar(console=console), LambdaCallback(**{hook: fail}))
        shown, hidden = (
            console.file.getvalue().count("\x1b[?25h"),
            console.file.getvalue().count("\x1b[?25l"),
        )
        assert shown == hidden > 0, "the cursor is visible again"
    assert type(sys.stdout).__name__ != "FileProxy"


def test_metrics_that_do_not_fit_are_cut(tmp_path):
    class Many(Tiny):
        def training_step(self, batch, batch_idx):
            self.log_dict({f"metric_{index}": float(index) for index in range(9)}, prog_bar=True)
            return super().training_step(batch, batch_idx)

    console = terminal(width=70)
    fit(
        tmp_path,
        RichProgressBar(console=console, refresh_interval_s=1e-9, leave=False),
        module=Many(),
    )
    lengths = [len(line) for part in text_of(console).split("\r") for line in part.splitlines()]
    assert max(lengths) <= 70 - len("^C"), (
        "with what a terminal writes there, a line is cleared as one"
    )
    assert not any(line.startswith("epoch") for line in text_of(console).splitlines())


def test_results_that_nobody_wants_to_see(tmp_path):
    console = terminal()
    trainer = make_trainer(tmp_path, RichProgressBar(console=console), enable_progress_bar=True)
    for verbose, is_told in ((False, False), (True, True)):
        trainer.validate(Tiny(), loader(), verbose=verbose)
        assert ("_loss 0." in text_of(console)) is is_told


def test_a_loader_without_a_length(tmp_path):
    class Endless:
        def __iter__(self):
            yield from loader()

    console = terminal()
    bar = RichProgressBar(console=console, refresh_interval_s=1e-9)
    make_trainer(tmp_path, bar, enable_progress_bar=True, max_epochs=1).fit(Tiny(), Endless())
    lines = [part for line in text_of(console).split("\r") for part in line.splitlines()]
    assert any(re.match(r"Epoch 0/0 \S+ 3 \S+ (it/s|s/it) \S+ train_loss", line) for line in lines)
    console = terminal()
    bar = RichProgressBar(console=console, refresh_interval_s=1e-9)

    class Predicting(Tiny):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return self(batch[0])

    make_trainer(tmp_path, bar, enable_progress_bar=True).predict(
        Predicting(), [Endless(), loader()]
    )
    counts = re.findall(r"Prediction \S+ (\d+) ", text_of(console).replace("\r", "\n"))
    assert max(map(int, counts)) == 4, "of the first, nobody knows how many there are"


def test_a_bar_of_unknown_length_is_empty():
    # draws what is done alone
    console = Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)
    for total in (float("inf"), 4):
        view, task = LiveView(console, 1), ProgressTask("Epoch", total)
        view.begin(task)
        task.advance(2, {})
        view.update(task)
        view.close()
        assert ("━" in text_of(console)) is (total == 4)


@pytest.mark.slow
def test_on_a_terminal_what_is_printed_stays_whole_above_the_bar(tmp_path):
    leader, follower = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "80",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, PROGRAM, tmp_path], stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    written = b""
    try:
        while chunk := os.read(leader, 65536):
            written += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        os.close(leader)
    assert process.wait() == 0
    raw = written.decode()
    assert "Epoch 0/1" in raw
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h")
    text = " ".join(without_control(raw).split())
    for step in (2, 6):
        assert f"step {step} says {'hello ' * 30}end" in text
    assert "trainable parameters" in text


# lines --------------------------------------------------------------------------------------------


def test_without_a_terminal_the_table_is_plain_and_rich_stays_out(tmp_path):
    run = f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__'); print('rich' in sys.modules)"
    code = f"import runpy, sys; sys.argv = ['', {str(tmp_path)!r}]; {run}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = programs.run([sys.executable, "-c", code], env=environment, preload="torch")
    assert "\x1b" not in out.stdout
    assert "Epoch" not in out.stdout
    lines = [line.split() for line in out.stdout.splitlines()]
    assert ["epoch", "step", "time", "it/s", "train_loss", "val_loss"] in lines
    assert [line[:2] for line in lines if len(line) == 6 and line[0] in "01"] == [
        ["0", "4"],
        ["1", "8"],
    ]
    told, is_imported = out.stdout.splitlines()[-2:]
    assert told.startswith("Test: test_loss ")
    assert is_imported == "False"
    assert out.stderr == ""


def test_a_long_epoch_has_lines_in_between(tmp_path, capsys):
    fit(tmp_path, RichProgressBar(line_interval_s=1e-9), max_epochs=1)
    lines = capsys.readouterr().out.splitlines()
    epochs = [line for line in lines if line.startswith("Epoch 0/0  ")]
    assert [line.split()[2] for line in epochs] == ["1/4", "2/4", "3/4", "4/4"]
    assert re.fullmatch(
        r"Epoch 0/0  4/4  \S+ (it/s|s/it)  \d:\d\d < \d:\d\d  train_loss \d.*", epochs[-1]
    )
    assert any(line.startswith("Validation  3/4") for line in lines)
    assert any(line.startswith("Sanity check  1/1") for line in lines)


def test_columns_that_come_later_bring_a_new_header(tmp_path, capsys):
    fit(
        tmp_path, RichProgressBar(), max_epochs=2, check_val_every_n_epoch=2, num_sanity_val_steps=0
    )
    headers = [
        line.split()[4:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("epoch")
    ]
    assert headers == [["train_loss"], ["train_loss", "val_loss"]]


# what it costs ------------------------------------------------------------------------------------


def test_metrics_are_read_only_when_something_is_drawn(tmp_path):
    reads = []

    class Counting(Trainer):
        @property
        def progress_bar_metrics(self):
            reads.append(self.global_step)
            return super().progress_bar_metrics

    bar = RichProgressBar(console=terminal(), refresh_interval_s=1e9)
    trainer = Counting(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, default_root_dir=tmp_path, callbacks=bar,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Tiny(), loader(), loader())
    assert reads == [4, 8]


# which one ----------------------------------------------------------------------------------------


def test_a_bar_of_the_users_own_replaces_it(tmp_path):
    class Own(ProgressBar):
        epochs = 0

        def on_train_epoch_end(self, trainer, module):
            self.epochs += 1
            assert self.get_metrics(trainer, module).keys() == {"train_loss", "val_loss"}
            assert (self.trainer, self.total_train_batches, self.is_enabled) == (trainer, 4, True)

    own = Own()
    trainer = fit(tmp_path, own)
    assert own.epochs == 2
    assert not any(isinstance(callback, RichProgressBar) for callback in trainer.callbacks)


def test_numbers_of_the_users_own_in_a_bar_that_can_be_switched_off(tmp_path, capsys):
    class Own(RichProgressBar):
        def get_metrics(self, trainer, module):
            return {**super().get_metrics(trainer, module), "lr": "1e-3"}

    own = Own()
    own.print("shown")
    fit(tmp_path, own, max_epochs=1)
    own.disable()
    own.print("hidden")
    fit(tmp_path, own, max_epochs=1)
    first, header, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (first, header[-3:], row[-1]) == (["shown"], ["train_loss", "val_loss", "lr"], "1e-3")


def test_six_metrics_take_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table, lines = EpochTable(), []
    names = ["train_loss_epoch", "val_loss", "val_accuracy", "learning_rate", "val/f1", "a" * 20]
    values = dict(zip(names, (-1.2345e-05, 0.5, 0.25, 1e-3, 1.0, 12345.6), strict=True))
    table.add(
        lambda line, is_header=False: lines.append(line),
        epoch=12,
        step=123456,
        seconds=3700,
        batches_per_s=1234.5,
        metrics=values,
    )
    assert lines == [
        "                                                                        aaaaaaaa",
        "                           train_lo          val_accu learning          aaaaaaaa",
        "epoch   step    time  it/s ss_epoch val_loss     racy    _rate   val/f1     aaaa",
        "   12 123456 1:01:40  1234 -1.2e-05   0.5000   0.2500 0.001000        1  1.2e+04",
    ]


def test_a_file_has_room(monkeypatch):
    def heads_of(names):
        """The lines of a header, and the widest of all lines."""
        lines = []
        EpochTable().add(
            lambda line, is_header=False: lines.append((line, is_header)),
            epoch=0, step=1, seconds=1, batches_per_s=1, metrics=dict.fromkeys(names, 0.5),
        )  # fmt: skip
        return [line for line, is_header in lines if is_header], max(len(line) for line, _ in lines)

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    assert len(heads_of([f"val/accuracy_of_class_{index}" for index in range(12)])[0]) == 1


def test_what_contradicts_it(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"enable_progress_bar=False, and callbacks has a RichProgressBar"
    ):
        make_trainer(tmp_path, RichProgressBar())


def test_it_pickles():
    bar = pickle.loads(pickle.dumps(RichProgressBar(line_interval_s=7, console=terminal())))
    assert bar.line_interval_s == 7


# numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (3661, "1:01:01")])
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5000"),
        (3.0, "3"),
        (1234.56, "1235"),
        (1e-7, "1.000e-07"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_values(value, text):
    assert format_value(value) == text


def test_nobody_knows_how_long_an_endless_loader_takes():
    assert ProgressTask("Epoch", float("inf")).remaining_s is None


# in a notebook ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_forked_ranks_of_a_notebook_print_the_table(tmp_path, monkeypatch):
    ranks = """
import time, torch
from core import Module, Trainer
class Net(Module):
    def __init__(self, fails):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(2, 1), fails
    def training_step(self, batch, batch_idx):
        if self.fails:
            raise KeyError("a bug")
        time.sleep(0.06)
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def fit(fails):
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Net(fails), torch.utils.data.DataLoader(torch.ones(24, 2), batch_size=2))
    return trainer.fabric.resolution.decisions
print(next(each.choice for each in fit(False) if each.subject == "strategy"))
"""

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    # else in the home
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(part) for part in (ranks, "fit(True)")]
    )
    timeout = int(100 * slowness())
    nbclient.NotebookClient(notebook, timeout=timeout, allow_errors=True).execute()
    of_ranks, of_error = (cell.outputs for cell in notebook.cells)
    printed = "".join(output.text for output in of_ranks if output.output_type == "stream")
    assert [line.split()[:2] for line in printed.splitlines()[-3:-1]] == [
        ["epoch", "step"],
        ["0", "6"],
    ]
    assert printed.splitlines()[-1] == "ddp_notebook"
    (error,) = (output for output in of_error if output.output_type == "error")
    assert re.search(r"Rank .*KeyError: 'a bug'", "\n".join(error.traceback).splitlines()[-1])
