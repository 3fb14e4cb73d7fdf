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
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    core_lightning.install()
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
        del sys.modules[name]


@pytest.fixture
def program(installed):
    """The program, imported as a script would be."""
    path = Path(__file__).with_name("program.py")
    spec = importlib.util.spec_from_file_location("lightning_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
