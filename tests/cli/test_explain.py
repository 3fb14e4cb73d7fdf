import json
import re
import subprocess
import sys
from functools import partial

import pytest


def test_each_decision_with_its_reason(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--devices", "1", "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    lines = " ".join(done.stdout.split())
    for row in (
        r"accelerator cpu accelerator='cpu' was asked for \(from core-base \d",
        r"devices 1 \(index 0\) devices='1' was asked for",
        r"strategy single_device auto: 1 device on 1 node",
        r"precision bf16-mixed precision='bf16' was asked for",
        r"launcher in_place",
    ):
        assert re.search(row, lines), row
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json(core_cli):
    decisions = json.loads(core_cli("explain", "--accelerator", "cpu", "--json").stdout)
    assert [decision["subject"] for decision in decisions] == [
        *(
            "accelerator",
            "devices",
            "nodes",
            "cluster environment",
            "strategy",
            "precision",
            "checkpoint io",
            "launcher",
        )
    ]
    assert all(
        decision.keys() == {"subject", "choice", "reason", "provider"} for decision in decisions
    )


def test_parts_by_name(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--plugin", "local", "--plugin", "spawn")
    assert "plugins=['spawn'] was asked for" in " ".join(done.stdout.split())


def test_a_broken_third_party_accelerator_is_a_warning(core_cli):
    core_cli.install(
        "core-acme",
        "[core.accelerators]\nacme = core_acme:Acme\n",
        modules={"core_acme": "raise OSError('no libacme')\n"},
    )
    done = core_cli("explain", "--devices", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "Warning: The accelerator 'acme' of core-acme 1.0 was not considered. "
    )
    assert "OSError: no libacme" in done.stderr


MODEL = """
import torch

class Block(torch.nn.Linear):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        assert torch.empty(1).is_meta  # no memory
        self.h = None

    def configure_model(self):
        self.h = torch.nn.ModuleList(Block(9, 9) for _ in range(12))

def build():
    return torch.nn.Linear(2, 2)

def fail():
    raise ValueError("no data here")

def other():
    return {}

number = 3
"""


def explain_model(core_cli, name):
    (core_cli.working / "nets.py").write_text(MODEL)
    return core_cli("explain", "--accelerator", "cpu", "--devices", "1", "--model", name)


def test_units_of_a_model(core_cli):
    done = explain_model(core_cli, "nets:Net")
    assert done.returncode == 0, done.stderr
    assert "units 12 x Block (h.0 ... 11) from its largest ModuleList" in " ".join(
        done.stdout.split()
    )
    assert "units none Linear has no ModuleList" in " ".join(
        explain_model(core_cli, "nets:build").stdout.split()
    )


def test_what_is_no_model(core_cli):
    for name, message in (
        ("nets", "expected MODULE:NAME, such as train:build_model"),
        ("nets:fail", "can't be made: ValueError: no data here"),
        ("nets:gone", "can't be made: AttributeError: module 'nets' has no attribute 'gone'"),
        ("nets:other", "expected a torch.nn.Module, got dict."),
        ("nets:number", "can't be made: TypeError: 'int' object is not callable"),
    ):
        done = explain_model(core_cli, name)
        assert done.returncode == 1
        assert f"Error: --model {name}" in done.stderr
        assert message in done.stderr


TOLD = """
from core import Strategy

class Told(Strategy):
    def __init__(self, width=1, plan=None, name=""):
        super().__init__()
        self.given = width, plan, name

    def explain_layout(self, module):
        yield "given", repr(self.given), "of a test"
        if module is not None:
            yield "model", type(module).__name__, "of a test"
"""


@pytest.fixture
def explain_told(core_cli):
    core_cli.install(
        "core-acme", "[core.strategies]\ntold = core_acme:Told\n", modules={"core_acme": TOLD}
    )
    (core_cli.working / "nets.py").write_text(MODEL)
    return partial(core_cli, "explain", "--accelerator", "cpu", "--devices", "1")


def test_options_of_a_strategy(explain_told):
    given = ["width=2", 'plan={"up": true}', "name=1F1B"]
    done = explain_told("--strategy", "told", *given, "--model", "nets:Net")
    assert done.returncode == 0, done.stderr
    lines = " ".join(done.stdout.split())
    assert "strategy told strategy='told' was asked for, with width=2" in lines
    assert "given (2, {'up': True}, '1F1B') of a test" in lines
    assert "model Net of a test" in lines


def test_options_that_a_strategy_does_not_have(explain_told):
    done = explain_told("--strategy", "told", "widht=2")
    assert done.returncode == 1
    assert "widht" in done.stderr
    assert "expected an option" in explain_told("--strategy", "told", "width").stderr
    assert "Name the strategy" in explain_told("width=2").stderr


def test_a_strategy_that_explains_nothing(core_cli):
    done = core_cli(
        "explain",
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--strategy",
        "ddp",
        "static_graph=True",
    )
    assert done.returncode == 0, done.stderr
    assert "layout unknown DDPStrategy is no core.contract.ExplainsLayout" in " ".join(
        done.stdout.split()
    )


def test_the_time_limit_of_finding_devices_is_not_for_the_import_of_torch(tmp_path):
    """From a cold disk that takes longer, and a torch that is imported in part can't be imported
    again.
    """
    (tmp_path / "torch.py").touch()
    program = """
import sys
import core.resolve
from core.cli import main

core.resolve.resolve = lambda **arguments: sys.exit("torch" in sys.modules and "imported before")
sys.argv[1:] = ["explain"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr == "imported before\n"
