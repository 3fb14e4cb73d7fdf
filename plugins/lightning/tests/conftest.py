import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import core_lightning

ROOTS = ("lightning", "lightning_fabric", "pytorch_lightning")


@pytest.fixture
def installed(monkeypatch):
    """Lightning's names mean core, until the test ends."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    core_lightning.install()
    yield importlib.import_module
    # No list of before: a package that a test imports may have added a finder of its own.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "core_lightning" not in type(finder).__module__]
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
def program(installed):
    """The program, imported as a script would be."""
    path = Path(__file__).with_name("program.py")
    spec = importlib.util.spec_from_file_location("lightning_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
