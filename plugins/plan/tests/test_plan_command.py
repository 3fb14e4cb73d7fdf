"""`core plan`, as a user calls it."""

import json
import os
import re

import pytest

from core_testing import programs

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader
from core import Module, Trainer

WIDTH, SAMPLES = 256, 128


class Net(Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))

    def training_step(self, batch):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self):
        return DataLoader(torch.zeros(1, 1).expand(2**16, WIDTH), batch_size=SAMPLES)


if __name__ == "__main__":
    print("the program's own line", sys.argv[1:])
    Trainer(accelerator="cpu", max_epochs=1).fit(Net(*map(int, sys.argv[1:])))
"""
PARAMETERS = 4 * 256 * 256 * 4  # bytes


@pytest.fixture
def core_plan(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")

    def run(*arguments, columns=200):
        environment = os.environ | {"COLUMNS": str(columns)}
        done = programs.run(
            [*programs.CORE, "plan", *arguments], cwd=tmp_path, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder = tmp_path
    return run


def plans(output):
    return {each["strategy"]: each for each in json.loads(output)["plans"]}


def test_the_table_says_what_fits_and_the_smallest_change_that_does(core_plan):
    output = core_plan(
        "train.py",
        "--devices",
        "8",
        "--memory",
        "4.2MiB",
        "--strategies",
        "single_device,ddp,fsdp",
        "-v",
    )
    lines = output.splitlines()
    assert lines[0] == "train.py on 8 devices, 4.2 MiB each"
    rows = [line.split("  ")[0] for line in lines[2:] if not line.startswith("    ") and line]
    assert rows == ["fsdp", "ddp", "single_device"]
    assert re.search(
        r"^fsdp .* yes, \d+\.\d KiB left$|^fsdp .* yes, \d\.\d MiB left$", output, re.MULTILINE
    )
    assert re.search(r"^ddp .* no, .* too much$", output, re.MULTILINE)
    assert re.search(r'^ +fits with precision="bf16-true": \d\.\d MiB$', output, re.MULTILINE)
    assert re.search(r"^ +sent: allreduce all 1\.0 MiB", output, re.MULTILINE)


def test_half_the_batch_is_the_change_where_activations_are_in_the_way(core_plan):
    program = (
        (core_plan.folder / "train.py")
        .read_text(encoding="utf-8")
        .replace("SAMPLES = 256, 128", "SAMPLES = 256, 8192")
    )
    (core_plan.folder / "train.py").write_text(program, encoding="utf-8")
    found = plans(
        core_plan("train.py", "--memory", "45MiB", "--strategies", "single_device", "--json")
    )["single_device"]
    whole, change = found["memory"]["activations"], found["change"]
    assert found["fits"] is False
    assert found["spare_bytes"] == 45 * 2**20 - found["peak_bytes"]
    assert change["what"] == "half the batch, accumulate_grad_batches doubled"
    assert change["plan"]["memory"]["activations"] == whole / 2
    assert change["plan"]["peak_bytes"] <= 45 * 2**20 < found["peak_bytes"]


def test_a_program_that_logs_evaluates_and_has_monitors_needs_no_change(core_plan):
    own = PROGRAM.replace(
        "Trainer(", "Trainer(callbacks=[ThroughputMonitor()], log_every_n_steps=1, "
    )
    own = own.replace(
        "return self.layers(batch).square().mean()",
        "return self.log_(self.layers(batch).square().mean())",
    )
    log = (
        '    def log_(self, loss):\n        self.log("loss", loss)\n        return loss\n\n    '
        "def configure_optimizers"
    )
    own = own.replace("    def configure_optimizers", log)
    own = own.replace(
        "from core import", "from core.callbacks import ThroughputMonitor\nfrom core import"
    )
    before = (
        '    [before] = Trainer(accelerator="cpu").validate(Net())\n    print(before["val_loss"])\n'
    )
    own = own.replace('if __name__ == "__main__":\n', f'if __name__ == "__main__":\n{before}')
    (core_plan.folder / "train.py").write_text(own, encoding="utf-8")
    found = plans(core_plan("train.py", "--devices", "2", "--strategies", "ddp", "--json"))["ddp"]
    assert found["failure"] is None
    assert found["assumed"] == ["metrics of an evaluation before fit were taken to be 1.0"]
    assert [*core_plan.folder.glob("**/*")] == [core_plan.folder / "train.py"], (
        "nothing was written"
    )


def test_a_class_of_a_module_and_a_programs_own_arguments(core_plan):
    of_class = plans(core_plan("train:Net", "--strategies", "single_device", "--json"))[
        "single_device"
    ]
    assert of_class["memory"]["parameters"] == PARAMETERS
    assert of_class["checkpoint_bytes"] == pytest.approx(3 * PARAMETERS, rel=0.01)
    assert (of_class["sent"], of_class["offloaded_to_cpu"]) == ({}, {})
    assert "fits" not in of_class, "no memory was given"
    # The width doesn't fit the data: what the program says is the reason.
    wider = plans(core_plan("train.py", "--strategies", "single_device", "--json", "--", "512"))
    assert "512" in wider["single_device"]["failure"]


@pytest.mark.slow  # about ten rehearsals
def test_without_names_all_installed_strategies_are_planned_for(core_plan):
    own = PROGRAM.replace("Trainer(", 'Trainer(strategy="fsdp_cpu_offload", devices=2, ')
    (core_plan.folder / "train.py").write_text(own, encoding="utf-8")
    found = plans(core_plan("train.py", "--devices", "2", "--json"))
    named = {
        "ddp",
        "fsdp",
        "model_parallel",
        "parallel:shard=2",
        "parallel:tensor=2",
        "parallel:pipeline=2",
    }
    assert named | {"fsdp_cpu_offload"} <= set(found), "the program's own preset too"
    assert not {"single_device", "parallel", "ddp_spawn"} & set(found)


def test_the_page_has_a_bar_a_strategy_and_the_peak_over_devices(core_plan):
    arguments = [
        "--devices",
        "4",
        "--memory",
        "3MiB",
        "--strategies",
        "fsdp,fsdp:bogus=1",
        "--page",
        "plan.html",
        "--over-devices",
    ]
    output = core_plan("train.py", *arguments)
    assert output.endswith("The page is plan.html.\n")
    page = (core_plan.folder / "plan.html").read_text(encoding="utf-8")
    assert page.count("<section") == 1
    assert page.count('class="limit"') == 2, "of the bar, and of the chart"
    assert re.findall(r"<title>(\d) devices", page) == ["1", "2", "4"]
    assert "bogus" in page
    assert "http" not in page, "it needs nothing else"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py", "--memory", "80"], "80GiB, 80GB or 512MiB"),
        (["absent.py"], "There is no file 'absent.py'"),
        (["train.py", "--strategies", "ddp,ddp"], "named twice"),
        (["train.py", "--strategies", "ddp,dpp"], "Did you mean 'dp' or 'ddp'?"),
    ],
)
def test_mistakes_are_told(core_plan, arguments, message):
    done = programs.run([*programs.CORE, "plan", *arguments], cwd=core_plan.folder, timeout=60)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
    assert "Rehearsing ddp" not in done.stderr


def test_a_strategy_that_the_program_registers_is_planned_for(core_plan):
    registers = "from core.registry import STRATEGY_REGISTRY as registry\n"
    registers += "registry.register('mine', registry['ddp'])\n"
    (core_plan.folder / "own.py").write_text(registers + PROGRAM, encoding="utf-8")
    found = plans(core_plan("own.py", "--devices", "2", "--strategies", "ddp,mine", "--json"))
    assert found["mine"]["peak_bytes"] == found["ddp"]["peak_bytes"] > 0
