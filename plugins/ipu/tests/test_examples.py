"""The examples, and the program of the README, on simulated IPUs."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from ipu_runs import QUIET, run_program
from torch.utils.data import DataLoader, Subset

from core import Callback, Module, Trainer

PLUGIN = Path(__file__).parents[1]
EXAMPLES = PLUGIN.parents[1] / "examples"
NUM_STEPS, BATCH_SIZE = 20, 8


def test_the_readmes_program_prints_what_stands_below_it(simulator, tmp_path):
    page = (PLUGIN / "README.md").read_text()
    program, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    (tmp_path / "program.py").write_text(program)
    done = run_program([tmp_path / "program.py"], simulator)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


@pytest.mark.slow
def test_digits_are_read(simulator):
    options = ["--accelerator", "ipu", "--devices", "2", "--epochs", "3"]
    done = run_program([EXAMPLES / "digits.py", *options], simulator)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"not trained on: ([\d.]+)% \(1 process\)", done.stdout)
    assert float(accuracy[1]) > 90


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(float(outputs))


@pytest.mark.slow
def test_char_gpt_learns_as_on_one_cpu(simulator):
    """The example's model, data, optimizer and schedule; its own loop is Fabric's, which a compiled step refuses."""
    example = runpy.run_path(str(EXAMPLES / "char_gpt.py"))
    text = example["read_standard_library"](4_000)
    alphabet = sorted(set(text))
    windows = example["Windows"](torch.tensor([alphabet.index(character) for character in text]))
    data = Subset(windows, torch.randperm(len(windows), generator=torch.Generator().manual_seed(1)).tolist())

    class Writer(Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.gpt = example["GPT"](len(alphabet), width=32)

        def training_step(self, batch):
            return example["compute_loss"](self.gpt, batch)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), betas=(0.9, 0.95))
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=NUM_STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def losses_on(accelerator, devices):
        losses = Losses()
        options = {"accelerator": accelerator, "devices": devices, "max_steps": NUM_STEPS, "gradient_clip_val": 1.0}
        trainer = Trainer(callbacks=losses, **options, **QUIET)
        trainer.fit(Writer(), DataLoader(data, batch_size=BATCH_SIZE // devices))
        return losses.seen

    expected = losses_on("cpu", 1)
    assert expected[-1] < expected[0] - 0.5
    assert losses_on("ipu", 2) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_char_gpts_own_loop_is_refused_with_the_reason(simulator):
    options = ["--accelerator", "ipu", "--devices", "1", "--steps", "1"]
    done = run_program([EXAMPLES / "char_gpt.py", *options], simulator)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "UnsupportedError: IPUStrategy runs forward, backward and update as one compiled program" in last
    assert "Use core.Trainer" in last
