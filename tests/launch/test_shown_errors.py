"""The lines that the commonest mistakes show: how many, the cause among them, and nothing lost by
it.
"""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

import core
from core.launch.worker_failure import WorkerFailure, describe_exit
from core_testing import programs

MAX_LINES = 12

COMMON = """
import logging, pathlib, sys, torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from core import Module, Trainer
from core.callbacks import EarlyStopping

class Net(Module):
    def __init__(self, width=2):
        super().__init__()
        self.layer = torch.nn.Linear(2, width)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Bug(Net):
    def training_step(self, batch, batch_idx):
        if self.trainer.global_rank == self.trainer.world_size - 1:
            raise ValueError("a bug")
        return super().training_step(batch, batch_idx)

class Twice(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        loss.backward()
        return loss

class BadData(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise KeyError("no such sample")

def data(columns=2):
    return DataLoader(TensorDataset(torch.rand(8, columns)), batch_size=2)

def make(**options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})
"""

DAMAGED = """
class Saves(Net):
    def on_train_end(self):
        self.trainer.save_checkpoint("last.ckpt")

make().fit(Saves(), data())
files = [path for path in pathlib.Path("last.ckpt").rglob("*") if path.is_file()]
big = max(files, key=lambda path: path.stat().st_size)
content = bytearray(big.read_bytes())
content[len(content) // 2] ^= 1
big.write_bytes(content)
make().fit(Net(), data(), ckpt_path="last.ckpt")
"""

BUG_IN_RANK_1 = """
def main():
    make(strategy={strategy!r}, devices=2).fit(Bug(), data())

if __name__ == "__main__":
    main()
"""

# As on a disk that is full; stderr is a file too, and needs less.
FULL = """
import resource

class Logs(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss" * 2_000, loss)
        return loss

resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
make(logger=True, log_every_n_steps=1).fit(Logs(), data())
"""


MISTAKES = {
    "a misspelt strategy": ("make(strategy='dpp', devices=2)", "Did you mean 'dp' or 'ddp'?"),
    "a damaged checkpoint": (DAMAGED, "is damaged"),
    "a full disk": (FULL, "CSVLogger can't write to 'core_logs': File too large"),
    "a metric that isn't logged": (
        "make(callbacks=[EarlyStopping('val_los')]).fit(Net(), data())",
        "'val_los', which was not logged",
    ),
    "a wrong shape": ("make().fit(Net(), data(3))", "mat1 and mat2 shapes cannot be multiplied"),
    "a bug in training_step": ("make().fit(Bug(), data())", 'raise ValueError("a bug")'),
    "a bug in a data set": (
        "make().fit(Net(), DataLoader(BadData()))",
        'raise KeyError("no such sample")',
    ),
    "an option that isn't there, in a registry": (
        "from core.registry import STRATEGY_REGISTRY\nSTRATEGY_REGISTRY.create('single_device', "
        "devcie='cpu')",
        "Did you mean 'device'?",
    ),
    "a backward too many": (
        "make().fit(Twice(), data())",
        "backward through the graph a second time",
    ),
    "a bug in rank 1, ddp": (BUG_IN_RANK_1.format(strategy="ddp"), 'raise ValueError("a bug")'),
    "a bug in rank 1, ddp_spawn": (
        BUG_IN_RANK_1.format(strategy="ddp_spawn"),
        'raise ValueError("a bug")',
    ),
}


@pytest.fixture
def show(tmp_path):
    """Runs a program, and returns what it writes to stderr."""

    def run(source, full=False):
        path = tmp_path / "program.py"
        path.write_text(COMMON + source + "\n")
        environment = os.environ | {
            "CORE_TRACEBACK": "full" if full else "",
            "CUDA_VISIBLE_DEVICES": "",
        }
        errors = programs.run(
            [sys.executable, path], cwd=tmp_path, env=environment, timeout=100
        ).stderr
        # The test's own machinery, with the marks below the call that Python 3.13 writes.
        return re.sub(
            r'  File ".*fork_server.py", line \d+, in <module>\n.*\n( +~*\^+\n)?', "", errors
        )

    return run


@pytest.mark.parametrize(("source", "cause"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_shown_in_few_lines_with_its_cause(show, source, cause):
    lines = show(source).splitlines()
    assert len(lines) <= MAX_LINES, "\n".join(lines)
    assert any(cause in line for line in lines), "\n".join(lines)
    assert any("program.py" in line for line in lines), "the user's own line"
    of_core = Path(core.__file__).parent
    assert not any(os.path.join(of_core, "") in line for line in lines), "no frame of core"
    assert "devices=2).fit(Bug" not in source or lines[-1].endswith(
        "Rank 1 failed with ValueError: a bug"
    ), "not what others lost"


def test_a_save_that_fails_as_the_program_ends_is_told_in_few_lines(show):
    lost_at_exit = """
from core import Fabric
import resource
fabric = Fabric(accelerator="cpu", plugins="async")
resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
fabric.save("last.ckpt", {"net": fabric.setup(torch.nn.Linear(100, 100))})
"""
    lines = show(lost_at_exit).splitlines()
    assert len(lines) <= MAX_LINES, "\n".join(lines)
    assert "last.ckpt' can't be written: File too large" in lines[-1]


def test_a_rank_that_native_code_ends_says_what_that_means():
    assert describe_exit(-signal.SIGABRT) == (
        "was killed by SIGABRT (native code gave up, and has written why to stderr; torch does "
        "that when ranks make different calls, as where only some of them call backward)"
    )


def test_the_environment_asks_for_all_frames(show):
    source, cause = MISTAKES["a damaged checkpoint"]
    errors = show(source, full=True)
    assert os.path.join("core", "checkpoint", "folder", "reader.py") in errors
    assert cause in errors
    assert len(errors.splitlines()) > 5 * MAX_LINES


def test_a_log_and_a_debugger_see_all_frames(show):
    errors = show(
        """
        try:
            make().fit(Net(), data(), ckpt_path="no.ckpt")
        except Exception as error:
            logging.exception("logged")
            while (trace := error.__traceback__).tb_next is not None:
                error.__traceback__ = trace.tb_next
            print("innermost", trace.tb_frame.f_code.co_name, file=sys.stderr)
        """.replace("\n        ", "\n")
    )
    assert os.path.join("core", "checkpoint", "any_form", "formats.py") in errors
    assert "innermost _read_manifest" in errors


def test_the_log_of_a_workers_error_has_the_workers_whole_traceback(show):
    errors = show(
        """
        if __name__ == "__main__":
            try:
                make(strategy="ddp_spawn", devices=2).fit(Bug(), data())
            except Exception as error:
                assert "fit.py" in error.worker_traceback
                logging.exception("logged")
        """.replace("\n        ", "\n")
    )
    assert os.path.join("core_training", "loops", "fit.py") in errors
    assert "Rank 1 failed with ValueError: a bug" in errors


def test_what_core_itself_may_have_done_wrong_is_shown_with_its_frames(show):
    errors = show("import core.fabric.fabric\ncore.fabric.fabric.resolve = None\nmake()")
    assert os.path.join("core", "fabric", "fabric.py") in errors
    assert "TypeError: 'NoneType' object is not callable" in errors


def test_somebody_elses_hook_stays(show):
    hook = (
        "sys.excepthook = lambda kind, error, trace: print('my hook:', kind.__name__, "
        "file=sys.stderr)\n"
    )
    assert show(hook + "make(strategy='dpp')").strip() == "my hook: UnknownAliasError"
    assert (
        show("trainer = make()\n" + hook + "make(strategy='dpp')").strip()
        == "my hook: UnknownAliasError"
    )


def test_hooks_are_there_while_a_fabric_is(show):
    source = """
import gc, warnings
assert sys.excepthook is sys.__excepthook__, "an import sets none"
import core, core.fabric
from core import Fabric, CheckpointError
before = (sys.excepthook, warnings.showwarning)
CheckpointError("an error that is only made")
assert (sys.excepthook, warnings.showwarning) == before
first, second = Fabric(accelerator="cpu"), make()
assert sys.excepthook is not before[0] and warnings.showwarning is not before[1]
del first
gc.collect()
assert sys.excepthook is not before[0], "the Trainer needs them"
del second
gc.collect()
assert (sys.excepthook, warnings.showwarning) == before
"""
    assert show(source) == ""


def test_hooks_are_gone_with_a_registrys_error_that_was_caught(show):
    source = """
from core.registry import STRATEGY_REGISTRY
try:
    STRATEGY_REGISTRY.get("no such one")
except core.CoreError:
    assert sys.excepthook is not sys.__excepthook__
assert sys.excepthook is sys.__excepthook__
"""
    assert show(f"import core{source}") == ""


def test_the_environment_leaves_the_hooks_alone(show, monkeypatch):
    monkeypatch.setenv("CORE_DISPLAY", "plain")
    source = "import warnings\nbefore = warnings.showwarning\nfabric = make()\n"
    source += "assert (sys.excepthook, warnings.showwarning) == (sys.__excepthook__, before)"
    assert show(source) == ""


def test_an_error_that_is_its_own_cause_is_shown():
    """As `raise error from error` leaves it."""
    error = ValueError("the user's own")
    error.__cause__ = error
    report = WorkerFailure.of(error)
    assert "ValueError: the user's own" in report.short_traceback
    assert not report.is_echo
