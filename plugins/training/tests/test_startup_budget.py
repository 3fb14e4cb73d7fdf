"""The imports on the way to the first step: a run that asks for nothing waits for nothing."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_run_with_everything_off_imports_nothing_for_the_rest():
    unused = (
        "core_training.callbacks.",
        "core.checkpoint.any_form.formats",
        "core.launch.multiprocessing",
        "core.launch.subprocess_script",
        "core.loggers.",
        "core_training.profilers",
        "core_training.hparams.from_checkpoint",
        "core_training.state.saving",
        "core_training.state.worker_result",
        "core_training.state.snapshot",
    )
    program = """
import sys
import torch

before = set(sys.modules)
from core import Trainer
after_import = set(sys.modules)

class Net(torch.nn.Linear):
    def training_step(self, batch):
        return self(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
Trainer(accelerator="cpu", devices=1, max_epochs=1, **off).fit(Net(2, 1), [torch.ones(1, 2)])
print(len(after_import - before))
print(*sorted(name for name in set(sys.modules) - after_import if name.startswith("core.")))
print(*sorted(name for name in set(sys.modules) - before if "." not in name))
"""
    environment = os.environ | {"CORE_PLUGINS": ""}  # whatever is installed here
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    num_modules, ours, packages = done.stdout.splitlines()
    assert int(num_modules) <= 60
    assert [name for name in ours.split() if name.startswith(unused)] == []
    assert {"click", "fsspec", "rich", "tensorboard"} & set(packages.split()) == set()
