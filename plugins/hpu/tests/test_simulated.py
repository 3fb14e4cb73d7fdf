"""core-hpu on simulated Gaudi devices, in processes of their own: torch learns of a device type for
good.
"""

import json
import os
import re
import sys

import pytest
import simulated
import torch
import torch.utils.backend_registration
from packaging.version import Version

from core_testing import programs
from support.checkout import KITS

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="this torch can't have a device in Python",
    ),
    pytest.mark.skipif(
        Version(torch.__version__) >= Version("2.15"),
        reason="this torch can't have a process group in Python",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "eager"])
def test_trains_on_simulated_devices(tmp_path, lazy):
    """Equal to one CPU over 20 steps, graphs, autocast, memory, collectives."""

    def pytest_on_simulated(folder, *arguments, lazy=True):
        command = [*programs.PYTEST, "-q", "-p", "no:cacheprovider", "-c", KITS, *arguments]
        return programs.run(command, cwd=folder, env=simulated.variables(lazy=lazy), timeout=280)

    done = pytest_on_simulated(tmp_path, simulated.HERE / "simulated_suite.py", lazy=lazy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "alias",
    [
        pytest.param("hpu", marks=pytest.mark.slow),
        pytest.param("hpu_single", marks=pytest.mark.slow),
        pytest.param("hpu_parallel", marks=pytest.mark.exhaustive),
    ],
)
def test_passes_the_kit_in_lazy_mode(tmp_path, alias):
    done = programs.run(
        [*programs.CORE, "check", alias], cwd=tmp_path, env=simulated.variables(), timeout=290
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on simulated" in done.stdout
    assert max(map(int, re.findall(r"(\d+) passed", done.stdout))) >= 18


def test_the_readmes_program_prints_what_stands_below_it(tmp_path):
    page = (simulated.HERE.parent / "README.md").read_text()
    program, output = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL
    ).groups()
    (tmp_path / "program.py").write_text(program)
    done = programs.run(
        [sys.executable, tmp_path / "program.py"], env=simulated.variables(), timeout=200
    )
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_explain_says_why_it_is_or_is_not_taken():
    def explained(**variables):
        done = programs.run(
            [*programs.CORE, "explain", "--json"],
            env=simulated.variables() | variables,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return {row["subject"]: row for row in json.loads(done.stdout)}["accelerator"]

    found = explained()
    assert (found["choice"], "it is here" in found["reason"]) == ("hpu", True)
    found = explained(PATH=os.path.dirname(sys.executable))
    assert (found["choice"], "hpu: hl-smi isn't on the PATH" in found["reason"]) == ("cpu", True)


def test_a_broken_library_is_an_error_and_not_the_cpu(tmp_path):
    package = tmp_path / "habana_frameworks" / "torch"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        "raise OSError('libSynapse.so: cannot open shared object file')"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program = "from core import Trainer; Trainer(accelerator='auto')"
    done = programs.run(
        [sys.executable, "-c", program],
        env=simulated.variables() | {"PYTHONPATH": path},
        timeout=120,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "DeviceError" in last
    assert "habana_frameworks.torch.core" in last
    assert "libSynapse.so" in last
