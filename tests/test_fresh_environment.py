"""A stranger's steps: a new environment outside the checkout, the built wheels, one more package,
one less.
"""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.fake_distributions import make_distribution

ROOT = Path(__file__).parents[1]
OURS = ("core-base", "core-testing")

pytestmark = pytest.mark.skipif(
    "CORE_WHEELS" not in os.environ, reason="only tox has built the wheels"
)


def required_entries():
    """The entries of `site-packages` for all that core, its kit and its builds require, and for
    what that requires in turn.
    """
    waiting, seen = [Requirement("core-testing"), Requirement("hatchling")], set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found, extras = distribution(requirement.name), {"", *requirement.extras}
        for inner in map(Requirement, found.requires or ()):
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in extras
            ):
                waiting.append(inner)
        if requirement.name not in OURS:
            yield from {file.parts[0] for file in found.files if file.parts[0] != ".."}


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with our own requirements, linked rather than downloaded, and nothing
    else.
    """
    folder = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name in {*required_entries()} - {"__pycache__"}:
        (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    return folder


def variables():
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CORE_", "PYTHON"))
    }


def pip(environment, *arguments):
    python = str(environment / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--quiet", "--python", python, *arguments]
    subprocess.run(command, env=variables(), check=True)


def install(environment, *names):
    """As README does: the constraints say where each distribution of ours is, and the rest is
    there.
    """
    pip(
        environment,
        "install",
        "--no-index",
        "-c",
        f"{os.environ['CORE_WHEELS']}/constraints.txt",
        *names,
    )


def run(environment, *command, check=True, timeout_s=120):
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        cwd=environment,
        env=variables(),
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout_s,
    )


@pytest.mark.slow
def test_a_backend_comes_and_goes_with_its_package(environment):
    exchange = """
from core import Fabric

fabric = Fabric(strategy="ddp_fork", accelerator="cpu", devices=2)
print(fabric.launch(lambda fabric: fabric.broadcast(["from rank", fabric.global_rank], src=1)))
"""
    program = """
from core import Trainer
Trainer(strategy="ddp", accelerator="cpu", devices=2)
print("made")
"""
    install(environment, "core-ddp")
    listed = run(environment, "core", "list-strategies").stdout
    rows = [line.split() for line in listed.splitlines()]
    assert ["ddp", "DDPStrategy", "core-ddp", "0.1.0", "ok"] in rows
    assert ["single_device", "SingleDeviceStrategy", "core-base", "0.1.0", "ok"] in rows
    assert "made" in run(environment, "python", "-c", program.replace("2)", "1)")).stdout
    assert "['from rank', 1]" in run(environment, "python", "-c", exchange).stdout
    doctor = run(environment, "core", "doctor")
    assert "Everything is in order." in doctor.stdout
    assert "another core" not in doctor.stdout

    pip(environment, "uninstall", "--yes", "core-ddp")
    assert "ddp" not in run(environment, "core", "list-strategies").stdout
    kit = run(environment, "core", "check", "ddp", check=False)
    assert kit.returncode == 1
    assert "`pip install core-testing`" in kit.stderr
    refused = run(environment, "python", "-c", program, check=False)
    assert refused.returncode == 1
    assert "`pip install core-ddp`" in refused.stderr


@pytest.mark.slow
def test_core_base_alone(environment):
    """A loop of one's own and the kit work without the Trainer, whose names say what to install."""
    program = """
import sys
import core.fabric
import torch
from core import Fabric

fabric = Fabric(strategy="own", accelerator="cpu", devices=1)
layer = torch.nn.Linear(1, 1)
layer, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
fabric.backward(layer(torch.ones(1, 1)).sum())
optimizer.step()
print("trained", "core_training" in sys.modules)
from core import Trainer
"""
    own = "from core import Strategy\nclass Own(Strategy): ...\n"
    install(environment, "core-base", "core-testing")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    entry = "[core.strategies]\nown = core_own:Own\n"
    make_distribution(site, "core-own", entry_points_text=entry, modules={"core_own": own})
    done = run(environment, "python", "-c", program, check=False)
    assert done.stdout == "trained False\n", done.stderr
    assert "core.Trainer comes with core-training." in done.stderr
    assert "`pip install core-training`" in done.stderr
    rows = [
        line.split()[0] for line in run(environment, "core", "list-strategies").stdout.splitlines()
    ]
    assert {"own", "single_device"} <= {*rows}
    some = ("--num-processes", "1", "-k", "equals_one_device and sgd or validates")
    kit = run(environment, "core", "check", "own", *some)
    assert "all well  own: a strategy of core-own 1.0, on cpu: 1 passed, 1 skipped" in kit.stdout


@pytest.mark.slow
def test_a_checkout_is_installed_by_its_folders(environment):
    folders = [ROOT, ROOT / "plugins" / "training", ROOT / "plugins" / "ddp"]
    pip(environment, "install", "--no-index", "--no-build-isolation", *map(str, folders))
    program = "from core import Trainer; Trainer(strategy='ddp', accelerator='cpu', devices=1)"
    run(environment, "python", "-c", program)
