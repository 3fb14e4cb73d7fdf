"""Strangers' distributions: built, installed, and tested by their own tests, with nothing but
public names of core.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from torch.utils import backend_registration

from core_testing import programs
from static.test_walls import imported_names

HERE = Path(__file__).parent
DISTRIBUTIONS = sorted(path.parent.name for path in HERE.glob("*/pyproject.toml"))
PACKAGES = {path.parents[1].name: path.parent.name for path in HERE.glob("*/*/__init__.py")}
ALIASES = {"diloco": "diloco", "sim-device": "sim_parallel"}
# `diloco` has a whole suite, of strategies that may differ from one device. Whole suites of those
# that equal it, and of simulated devices, are those of plugins, such as the one of
# plugins/hpu/tests/test_simulated.py.
SHORT = {
    "sim-device": "not TestSimParallel or TestSimParallelFork",
}
TIMEOUT_S = 900

run_interpreter = partial(subprocess.run, capture_output=True, text=True)


def run(folder, *command, begin=run_interpreter, **variables):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    done = begin(command, cwd=folder, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with all of them installed, as `PYTHONPATH` takes it. Torch and core are those of
    this environment.
    """
    folder = tmp_path_factory.mktemp("downstream")
    sources = [shutil.copytree(HERE / name, folder / "source" / name) for name in DISTRIBUTIONS]
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    run(
        folder,
        *pip,
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "wheels",
        *sources,
    )
    wheels = [str(path) for path in (folder / "wheels").glob("*.whl")]
    assert len(wheels) == len(DISTRIBUTIONS)
    run(folder, *pip, "install", "--no-index", "--no-deps", "--target", "site", *wheels)
    return folder / "site"


def python_path(installed):
    return os.pathsep.join([str(installed), *filter(None, sys.path)])


@pytest.fixture
def own_tests(installed, tmp_path):
    """Runs a file of a distribution's own tests, away from the checkout."""

    def run_file(name, file, *options):
        folder = shutil.copytree(HERE / name, tmp_path / name)
        shutil.rmtree(folder / PACKAGES[name])  # what is tested is what was installed
        command = (*programs.PYTEST, "-q", "-p", "no:cacheprovider", f"tests/{file}", *options)
        return run(folder, *command, begin=programs.run, PYTHONPATH=python_path(installed))

    return run_file


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_it_trains_as_its_authors_say(own_tests, name):
    if name == "sim-device" and not hasattr(
        backend_registration, "_setup_privateuseone_for_python_backend"
    ):
        pytest.skip("this torch can't have a device in Python")
    assert re.search(r"[1-9]\d* passed", own_tests(name, "test_training.py"))


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_it_passes_the_conformance_kit(own_tests, name):
    suites = ("-k", SHORT[name]) if name in SHORT else ()
    assert re.search(r"[1-9]\d\d? passed", own_tests(name, "test_conformance.py", *suites))


def test_they_are_listed(installed):
    listed = run(
        installed,
        sys.executable,
        "-m",
        "core",
        "list-strategies",
        PYTHONPATH=python_path(installed),
    )
    rows = [line.split() for line in listed.splitlines()]
    for name, alias in ALIASES.items():
        distribution = PACKAGES[name].replace("_", "-")
        assert [row[-1] for row in rows if row[:1] == [alias] and distribution in row] == ["ok"]


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/**/*.py")), ids=lambda path: str(path.relative_to(HERE))
)
def test_it_uses_public_names_only(path):
    """Those in the `__all__` of `core`, of its public subpackages, and of the other plugins."""
    for dotted in (*imported_names(path), *imported_names(path, "core_testing")):
        module, _, name = dotted.rpartition(".")
        assert module.count(".") <= 1, f"{path}: {module} is an inner module"
        assert name in importlib.import_module(module).__all__, (
            f"{path}: {dotted} is not in __all__"
        )
