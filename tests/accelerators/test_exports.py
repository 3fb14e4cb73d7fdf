import subprocess
import sys

import pytest

import core.accelerators
import core.checkpoint
import core.loggers
import core.precision
from core.contract import Absent, Accelerator
from core.registry import ACCELERATOR_REGISTRY

PACKAGES = [core.accelerators, core.precision, core.checkpoint, core.loggers]


class AcmeAccelerator(Accelerator):
    @classmethod
    def detect(cls):
        return Absent("for a test")

    def torch_devices(self, indices):
        return []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert dir(package) == package.__all__


def test_the_packages_themselves_import_no_torch():
    names = ", ".join(package.__name__ for package in PACKAGES)
    program = f"import sys, {names}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_plugins_class_can_be_imported_from_core():
    ACCELERATOR_REGISTRY.register("acme", AcmeAccelerator)
    try:
        from core.accelerators import AcmeAccelerator as imported
    finally:
        ACCELERATOR_REGISTRY.remove("acme")
    assert imported is AcmeAccelerator


def test_a_well_known_class_says_what_to_install(monkeypatch):
    monkeypatch.setattr(
        "core.registry.registry.known_classes", lambda kind: {"QuantizedStrategy": "core-planned"}
    )
    with pytest.raises(
        ImportError,
        match=r"comes with core-planned\. core-planned is not installed: `pip install core-",
    ):
        from core.strategies import QuantizedStrategy  # noqa: F401


@pytest.mark.parametrize("name", ["Nonsense", "nonsense", "__wrapped__"])
def test_a_name_that_nobody_offers(name):
    assert not hasattr(core.accelerators, name)
