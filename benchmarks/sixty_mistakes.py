"""Make over sixty mistakes of a first week: how many lines each takes, and whether the last three
have its cause.

python benchmarks/sixty_mistakes.py [--only WORDS] [--show]

Programs start in forks of one process, so that all take about a minute. `--show` prints what they
write.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import textwrap
from pathlib import Path

from core_testing import programs

HEAD = """
import pathlib, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from core import Callback, DataModule, Fabric, Module, Trainer
from core.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint

class Net(Module):
    def __init__(self, width=2):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(2, width)

    def forward(self, batch):
        return self.layer(batch)

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def data(columns=2, rows=8):
    return DataLoader(TensorDataset(torch.rand(rows, columns)), batch_size=2)

def make(**options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 1, **quiet, **options})

def saved(path="last.ckpt", width=2):
    trainer = make()
    class Saves(Net):
        def on_train_end(self):
            self.trainer.save_checkpoint(path)
    trainer.fit(Saves(width), data())
    return path

def fit(body, **options):
    make(**options).fit(body, data(), data())
"""


def step(body):
    """A program whose training step is this."""
    text = textwrap.indent(body, "        ")
    return f"class It(Net):\n    def training_step(self, batch, batch_idx):\n{text}\nfit(It())"


def optimizers(body):
    """A program that configures optimizers so."""
    return f"class It(Net):\n    def configure_optimizers(self):\n        {body}\nfit(It())"


PROGRAMS = {
    # names and options
    "a misspelt strategy": ("make(strategy='dpp')", "Did you mean"),
    "a misspelt accelerator": ("make(accelerator='cpuu')", "Did you mean"),
    "a misspelt precision": ("make(precision='bf16-mix')", "Did you mean 'bf16-mixed'"),
    "a misspelt option": ("make(max_epoch=3)", "max_epochs"),
    "an option of the wrong type": ("make(max_epochs='3')", "max_epochs='3'"),
    "a negative limit": ("make(limit_train_batches=-1)", "limit_train_batches"),
    "no such device": ("make(accelerator='gpu', devices=64)", "there is none here"),
    "no devices": ("make(devices=0)", "devices=0"),
    "a misspelt logger": ("make(logger='wanb')", "Did you mean"),
    "a logger that isn't one": ("make(logger=3)", "logger has 3"),
    "a callback's class": ("make(callbacks=[EarlyStopping])", "EarlyStopping"),
    "a callback that isn't one": ("make(callbacks=['early'])", "'early'"),
    "two limits of a checkpoint": (
        "ModelCheckpoint(every_n_epochs=1, every_n_train_steps=1)",
        "every_n",
    ),
    "a misspelt mode": ("EarlyStopping('val_loss', mode='minimum')", "'minimum'"),
    "a misspelt callback": ("from core.callbacks import EarlyStoping", "'EarlyStoping'"),
    "a misspelt import": ("from core import Trainr", "'Trainr'"),
    "gradients clipped by a word": ("make(gradient_clip_val='1')", "gradient_clip_val"),
    "a rate for the learning rate": ("make(accumulate_grad_batches=0)", "accumulate_grad_batches"),
    # modules
    "the module's class": ("make().fit(Net, data())", "Net()"),
    "no training_step": ("make().fit(nn.Linear(2, 2), data())", "training_step"),
    "loader and module swapped": ("make().fit(data(), Net())", "DataLoader"),
    "no super().__init__": (
        "class It(Module):\n    def __init__(self):\n        self.l = nn.Linear(1, 1)\nIt()",
        "__init__() call",
    ),
    "no optimizer": (
        "class It(Module):\n    training_step = Net.training_step\nfit(It())",
        "configure_optimizers",
    ),
    "an optimizer's class": (optimizers("return torch.optim.SGD"), "SGD"),
    "a word as optimizer": (optimizers("return 'sgd'"), "'sgd'"),
    "a scheduler alone": (optimizers("return {'lr_scheduler': 1}"), "optimizer"),
    "a misspelt key of a scheduler": (
        optimizers(
            "o = torch.optim.SGD(self.parameters(), lr=1.0); s = "
            "torch.optim.lr_scheduler.StepLR(o, 1); return {'optimizer': o, 'lr_scheduler': "
            "{'scheduler': s, 'intervall': 'step'}}"
        ),
        "interval",
    ),
    "a plateau without a monitor": (
        optimizers(
            "o = torch.optim.SGD(self.parameters(), lr=1.0); "
            "return [o], [torch.optim.lr_scheduler.ReduceLROnPlateau(o)]"
        ),
        "monitor",
    ),
    "no parameters": (optimizers("return torch.optim.SGD([], lr=0.1)"), "empty parameter list"),
    "a step without a loss": (step("return {'los': torch.zeros(())}"), "'los'"),
    "a detached loss": (step("return self(batch[0]).mean().detach()"), "without a graph"),
    "a loss per sample": (step("return self(batch[0]).mean(1)"), "shape"),
    "a loss as a number": (step("return 0.5"), "float"),
    "a bug in a step": (step("raise ValueError('a bug')"), "a bug"),
    "a name that isn't there": (step("return self.lossfn(batch)"), "lossfn"),
    "a wrong shape": ("make().fit(Net(), data(3))", "mat1 and mat2"),
    "a wrong type": (step("return self(batch[0].long()).mean()"), "same dtype"),
    "a log of several": (step("self.log({'loss': 1.0})"), "log_dict"),
    "a log of text": (step("self.log('a', 'b')"), "'a'"),
    "a log of a vector": (step("self.log('a', torch.ones(3))"), "shape"),
    "a backward of one's own": (
        step("loss = self(batch[0]).mean(); loss.backward(); return loss"),
        "backward",
    ),
    "optimizers() in automatic": (
        step("self.manual_backward(self(batch[0]).mean())"),
        "automatic_optimization",
    ),
    "a step without arguments": (
        "class It(Net):\n    def training_step(self):\n        pass\nfit(It())",
        "training_step",
    ),
    "a trainer in __init__": (
        "class It(Net):\n    def __init__(self):\n        super().__init__()\n        "
        "self.trainer.world_size\nIt()",
        "trainer",
    ),
    # data
    "no loader": ("make().fit(Net())", "training loader"),
    "a data set for a loader": ("make().fit(Net(), TensorDataset(torch.ones(2, 2)))", "DataLoader"),
    "an empty data set": ("make().fit(Net(), data(rows=0))", "empty"),
    "a bug in a data set": (
        "class Bad(Dataset):\n    def __len__(self):\n        return 2\n"
        "    def __getitem__(self, index):\n        raise KeyError('no sample')\n"
        "make().fit(Net(), DataLoader(Bad()))",
        "no sample",
    ),
    "samples of several lengths": (
        "class Ragged(Dataset):\n    def __len__(self):\n        return 2\n"
        "    def __getitem__(self, index):\n        return torch.ones(index + 1)\n"
        "make().fit(Net(), DataLoader(Ragged(), batch_size=2))",
        "equal size",
    ),
    "no test_step": ("make().test(Net(), data())", "test_step"),
    "a data module without loaders": (
        "make().fit(Net(), datamodule=DataModule())",
        "train_dataloader",
    ),
    # metrics and checkpoints
    "a metric that isn't logged": ("fit(Net(), callbacks=[EarlyStopping('val_los')])", "val_los"),
    "a checkpoint by no metric": (
        "make(enable_checkpointing=True, callbacks=[ModelCheckpoint(monitor='acc')]).fit(Net(), "
        "data(), data())",
        "acc",
    ),
    "learning rates without a logger": ("fit(Net(), callbacks=[LearningRateMonitor()])", "logger"),
    "a missing checkpoint": ("make().fit(Net(), data(), ckpt_path='no.ckpt')", "no.ckpt"),
    "the best of none": ("make().test(Net(), data(), ckpt_path='best')", "best"),
    "a damaged checkpoint": (
        "path = saved()\nbig = max(pathlib.Path(path).rglob('*.data'), key=lambda p: "
        "p.stat().st_size)\n"
        "big.write_bytes(b'x' + big.read_bytes()[1:])\nmake().fit(Net(), data(), ckpt_path=path)",
        "damaged",
    ),
    "another model's checkpoint": ("make().fit(Net(3), data(), ckpt_path=saved())", "layer"),
    "a checkpoint for another class": (
        "nn.Linear(2, 2).load_state_dict(torch.load(saved()))",
        "last.ckpt",
    ),
    "a text file as a checkpoint": (
        "pathlib.Path('a.ckpt').write_text('hello')\nmake().fit(Net(), data(), ckpt_path='a.ckpt')",
        "a.ckpt",
    ),
    # Fabric
    "a backward of one's own, Fabric": (
        "Fabric(accelerator='cpu').backward(torch.ones(()))",
        "grad",
    ),
}

COMMANDS = {
    "core run nofile.py": (["run", "nofile.py"], "nofile.py"),
    "core run --devices two": (["run", "--devices", "two", "a.py"], "got 'two'"),
    "core report of no run": (["report", "nothing"], "nothing"),
    "core checkpoint ls of nothing": (["checkpoint", "ls", "nothing"], "nothing"),
    "a misspelt command": (["reprot", "x"], "report"),
    "core explain of a misspelt word": (["explain", "--strategy", "dpp"], "dpp"),
}


def shown_by(command):
    """Standard error of a program in an empty folder, whose `program.py` is its last word if it has
    one.
    """
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(command, list):
            Path(folder, "program.py").write_text(f"{HEAD}\n{command}\n")
            command = [sys.executable, "program.py"]
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "default::UserWarning",
        }
        done = programs.run(command, cwd=folder, env=environment, timeout=100)
    # Without the frame of the process that is forked.
    errors = re.sub(
        r'  File ".*fork_server.py", line \d+, in <module>\n.*\n( +~*\^+\n)?', "", done.stderr
    )
    return errors or f"exit code {done.returncode}: {done.stdout}"


def main():
    """Make the mistakes, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORDS")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    commands = {
        name: ([*programs.CORE, *words], cause) for name, (words, cause) in COMMANDS.items()
    }
    lengths, late = [], 0
    for name, (command, cause) in {**PROGRAMS, **commands}.items():
        if arguments.only not in name:
            continue
        shown = shown_by(command)
        lines = shown.strip().splitlines()
        is_there = any(cause in line for line in lines[-3:])
        lengths.append(len(lines))
        late += not is_there
        print(f"{len(lines):3} lines  {'cause' if is_there else '     '}  {name}", flush=True)
        if arguments.show or not is_there:
            print(textwrap.indent(shown.strip(), "      | "))
    print(
        f"{len(lengths)} mistakes: {statistics.median(lengths)} lines at the median, "
        f"{max(lengths)} at most; ",
        end="",
    )
    print(f"{late} without the cause in the last three lines")


if __name__ == "__main__":
    main()
