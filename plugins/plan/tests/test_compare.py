"""`core compare` on small programs: figures, numbers, a fault that it finds, and what it leaves
behind.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from core import ConfigurationError
from core.registry import load_prelude
from core_testing import programs
from core_testing.waiting import slowness, wait_until
from support.fake_distributions import make_distribution

TRAINER = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.callbacks import ModelCheckpoint

print("ARGUMENTS", json.dumps(sys.argv))


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


inputs = torch.randn(256, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
callbacks = [ModelCheckpoint("checkpoints", every_n_train_steps=1)]
Trainer(max_epochs=20, strategy="fsdp", devices=1, accelerator="cpu", callbacks=callbacks, precision="64-true").fit(
    Net(), loader
)
open("after", "w").close()
"""
STRATEGIES = """
from core import ConfigurationError
from core_ddp import DDPStrategy


class Forgetful(DDPStrategy):
    '''Averages all gradients but one.'''

    def setup_module(self, module):
        names = [name for name, _ in module.named_parameters()]
        module._ddp_params_and_buffers_to_ignore = [name for name in names if name.endswith("2.bias")]
        return super().setup_module(module)


class Failing(DDPStrategy):
    def setup_module(self, module):
        raise ConfigurationError("it fails as it was made to.")
"""
ENTRY_POINTS = (
    "[core.strategies]\nforgetful = acme_strategies:Forgetful\nfailing = acme_strategies:Failing\n"
)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A folder with an installed package of strategies, as others write them."""
    folder = tmp_path_factory.mktemp("installed")
    make_distribution(
        folder, "acme", entry_points_text=ENTRY_POINTS, modules={"acme_strategies": STRATEGIES}
    )
    return folder


def command(folder, program, strangers, *arguments):
    """The command in a folder of its own with a program, and what it is started with."""
    (folder / "scratch").mkdir()
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(program)
    scratch = ["--scratch", folder / "scratch", "--devices", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(strangers)}
    return [*programs.CORE, "compare", *scratch, "train.py", *arguments], {
        "cwd": folder / "work",
        "env": env,
    }


def compare(folder, program, strangers, *arguments):
    """Its JSON."""
    args, options = command(folder, program, strangers, "--json", *arguments)
    done = programs.run(args, timeout=250, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {
        "left": sorted(path.name for path in (folder / "work").rglob("*"))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, strangers):
    folder = tmp_path_factory.mktemp("trainer")
    names = "ddp,forgetful,failing"
    options = [
        "--strategies",
        names,
        "--steps",
        "6",
        "--rounds",
        "1",
        "--page",
        folder / "page.html",
    ]
    return compare(folder, TRAINER, strangers, "--lr", "3", *options, "--", "--steps", "2") | {
        "page": (folder / "page.html").read_text(),
        "scratch": list((folder / "scratch").iterdir()),
    }


@pytest.mark.slow
def test_a_contender_has_its_figures(trained):
    ddp = trained["contenders"][0]
    assert (ddp["strategy"], ddp["status"], ddp["num_steps"]) == ("ddp", "measured", 6)
    assert trained["reference"] == "ddp"
    assert len(ddp["losses"]) == 6
    assert len(ddp["samples_per_s"]["values"]) == 4, "of six steps two are warm-up"
    assert ddp["samples_per_step"] == 8, "four samples of each rank"
    num_elements = 4 * 8 + 8 + 8 + 1
    assert ddp["sent_bytes"]["allreduce"] == 8 * num_elements, "gradients in float64"
    assert ddp["checkpoint_bytes"] > 8 * num_elements
    assert ddp["checkpoint_s"] > 0
    assert ddp["startup_s"]["median"] > 0
    assert ddp["peak_memory_bytes"] > 2**26, "torch alone takes more"


@pytest.mark.slow
def test_a_gradient_that_is_not_averaged_is_named_at_its_first_step(trained):
    forgetful = trained["contenders"][1]
    parting = forgetful["numbers"]["weights_part"]
    assert (parting["step"], parting["tensor"], parting["num_parted"]) == (1, "layers.2.bias", 1)
    assert 0.05 < parting["distance"] < 20
    assert "layers.2.bias at step 1" in forgetful["note"]
    assert "layers.2.bias at step 1" in trained["page"]


@pytest.mark.slow
def test_a_contender_that_fails_is_a_row_with_its_reason(trained):
    failing = trained["contenders"][2]
    assert failing["status"] == "failed"
    assert failing["reason"] == "core.ConfigurationError: it fails as it was made to."
    assert 'ARGUMENTS ["train.py", "--lr", "3", "--steps", "2"]' in failing["log"], (
        "options before and after --"
    )
    assert "it fails as it was made to" in trained["page"]


@pytest.mark.slow
def test_nothing_stays_beside_the_program(trained):
    assert trained["left"] == ["train.py"]
    assert trained["scratch"] == []


@pytest.mark.slow
def test_a_loop_by_hand_is_compared_too(tmp_path, strangers):
    FABRIC = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Fabric

fabric = Fabric(accelerator="cpu", devices=1, loggers="csv", precision="64-true")
fabric.launch()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
inputs = torch.randn(48, 4).double()
data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2, shuffle=True)
loader = fabric.setup_dataloaders(data)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
for number, (inputs, targets) in enumerate(loader):
    loss = nn.functional.mse_loss(model(inputs), targets)
    fabric.backward(loss / 2)
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        fabric.log("loss", loss)
"""
    options = ["--strategies", "ddp,forgetful", "--steps", "20", "--rounds", "1"]
    found = compare(tmp_path, FABRIC, strangers, *options)
    ddp, forgetful = found["contenders"]
    assert found["left"] == ["train.py"]
    assert ddp["samples_per_step"] == 8, "two batches of two samples of each rank"
    assert ddp["num_steps"] == 6, "an epoch has no more"
    assert "ended after 6 of 20 steps" in ddp["note"]
    assert ddp["samples_per_s"] is not None
    assert forgetful["numbers"]["weights_part"]["tensor"] == "2.bias"


@pytest.mark.slow
def test_ctrl_c_prints_what_there_is_and_leaves_no_process(tmp_path, strangers):
    def processes_in(folder):
        """The ranks that work in a folder: their number is the program's own, whose variables they
        have.
        """
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_rank = b"RANK=" in (process / "environ").read_bytes()
                if is_rank and (process / "cwd").readlink().is_relative_to(folder):
                    found.append(process.name)
            except OSError:
                continue
        return found

    arguments = ["--strategies", "ddp,fsdp", "--steps", "5", "--rounds", "1000", "--no-checkpoint"]
    args, options = command(tmp_path, TRAINER, strangers, *arguments)
    program = programs.start(args, **options)
    wait_until(
        lambda: "fsdp" in program.errors() and processes_in(tmp_path), "rank of fsdp", timeout_s=120
    )
    os.kill(program.pid, signal.SIGINT)
    assert program.wait(60 * slowness()) == 130
    assert "ddp" in program.output()
    assert "Interrupted: this is what there is." in program.output()
    assert not processes_in(tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_missing_script_is_told_before_anything_runs(tmp_path):
    done = programs.run(
        [*programs.CORE, "compare", "nothing.py", "--strategies", "ddp"], cwd=tmp_path
    )
    assert done.returncode == 2
    assert "there is no file 'nothing.py' here" in done.stderr


def test_the_prelude_says_whose_it_is(monkeypatch):
    monkeypatch.delenv("CORE_COMPARE_TASK", raising=False)
    with pytest.raises(ConfigurationError, match="is for the processes that `core compare` starts"):
        load_prelude("core-compare")()
