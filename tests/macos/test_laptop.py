"""What a laptop with macOS gets of core, on a Linux that lacks what macOS lacks."""

import ctypes.util
import importlib.util
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from support.checkout import ROOT

RUN = Path(__file__).with_name("run")

PROGRAM = """
import os, sys
import torch
from core import Module, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Line(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


if __name__ == "__main__":
    assert (sys.platform, os.path.exists("/proc/self/stat"), hasattr(os, "memfd_create")) == ("darwin", False, False)
    x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    loader = DataLoader(TensorDataset(x, 3 * x + 1), batch_size=4, shuffle=True, num_workers=1)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, max_epochs=2, enable_progress_bar=False)
    trainer.fit(line := Line(), loader)
    slope, offset = line.layer.weight.item(), line.layer.bias.item()
    trainer.print(f"{trainer.world_size} processes: y = {slope:.1f} x + {offset:.1f}")
"""


def obstacle():
    """Why a command can't run without what macOS lacks; empty if it can."""
    if importlib.util.find_spec("mfusepy") is None or ctypes.util.find_library("fuse") is None:
        return "the file system that ignores case needs mfusepy and libfuse"
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    done = subprocess.run(["unshare", "--mount", *as_root, "true"], capture_output=True, text=True)
    return done.stderr.strip()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is taken away from Linux")
def test_two_processes_train_without_what_is_of_linux_alone(tmp_path):
    if why := obstacle():
        pytest.skip(why)
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    command = [RUN, sys.executable, tmp_path / "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 processes: y = 3.0 x + 1.0"


def test_names_of_files_differ_by_more_than_case():
    """A file system that ignores case, as that of macOS, can hold this checkout."""
    for folder in ("core", "plugins", "tests", "docs", "examples", "benchmarks"):
        names = [str(path) for path in ROOT.joinpath(folder).rglob("*")]
        alike = {unicodedata.normalize("NFC", name).casefold() for name in names}
        assert len(alike) == len(names), folder
