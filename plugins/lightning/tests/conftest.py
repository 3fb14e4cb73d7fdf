import importlib
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest

import core_lightning

ROOTS = ("lightning", "lightning_fabric", "pytorch_lightning")


@pytest.fixture
def installed(monkeypatch):
    """Lightning's names mean core, until the test ends; with `UNDER_LIGHTNING=1` before pytest,
    Lightning itself.
    """
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    if "UNDER_LIGHTNING" in os.environ:
        yield importlib.import_module
        return
    # until the test ends: pytest puts them back
    warnings.filterwarnings("ignore", "core trains in Lightning's place")
    core_lightning.install()
    yield importlib.import_module
    # No list of before: a package that a test imports may have added a finder of its own.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if "core_lightning" not in type(finder).__module__
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
        del sys.modules[name]


@pytest.fixture
def pl(installed, tmp_path, monkeypatch):
    """`lightning.pytorch`, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return installed("lightning.pytorch")


@pytest.fixture
def boring(installed):
    """The demos' models."""
    return installed("lightning.pytorch.demos.boring_classes")


@pytest.fixture
def loaded(installed):
    """Imports a file of this folder, which imports Lightning itself."""

    def load(name):
        spec = importlib.util.spec_from_file_location(
            f"lightning_{Path(name).stem}", Path(__file__).parent / name
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # for good: libraries that list all callbacks import it
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def lit(loaded, tmp_path, monkeypatch):
    """Small nets for Lightning, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return loaded("small.py")


@pytest.fixture
def program(loaded):
    """The program, imported as a script would be."""
    return loaded("program.py")
