"""Detection on a machine with IPUs, without, and with a PopTorch that can't be imported."""

import sys

import pytest

from core import Absent, Broken, ConfigurationError, Fabric, Found
from core_ipu import IPUAccelerator


def test_ipus_are_counted_and_win():
    before = set(sys.modules)
    assert IPUAccelerator.detect() == Found(16)
    assert not any(name.startswith("poptorch") for name in set(sys.modules) - before)
    fabric = Fabric(accelerator="auto")
    assert (fabric.strategy.accelerator.name, type(fabric.strategy).__name__) == (
        "ipu",
        "IPUStrategy",
    )
    assert fabric.strategy.num_replicas == 16


def test_without_devices_the_cpu_is_taken_with_a_reason(monkeypatch):
    monkeypatch.setenv("POPTORCH_SIMULATED_IPUS", "0")
    reason = "poptorch counts no IPU (ipuHardwareIsAvailable() is False)"
    assert IPUAccelerator.detect() == Absent(reason)
    assert Fabric(accelerator="auto").strategy.accelerator.name == "cpu"


def test_without_the_library_the_cpu_is_taken_with_a_reason(simulator, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != simulator])
    monkeypatch.delitem(sys.modules, "poptorch", raising=False)
    assert IPUAccelerator.detect() == Absent("the package poptorch is not installed")
    assert Fabric(accelerator="auto").strategy.accelerator.name == "cpu"


def test_a_broken_library_is_an_error_and_not_the_cpu(monkeypatch):
    monkeypatch.setenv("POPTORCH_SIMULATED_IPUS", "broken")
    detection = IPUAccelerator.detect()
    assert isinstance(detection, Broken)
    assert "ImportError: Unable to import PopTorch" in detection.reason
    with pytest.raises(
        ConfigurationError,
        match=r"'ipu' .* is here, but it can't be used: poptorch is installed, and",
    ):
        Fabric(accelerator="auto")
