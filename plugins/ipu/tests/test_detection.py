"""Detection on a machine with IPUs, without, and with a PopTorch that can't be imported."""

import json
import sys

import pytest
from ipu_runs import run_program

from core import Absent, Broken, ConfigurationError, Fabric, Found
from core_ipu import IPUAccelerator


def explained(simulator, **options):
    done = run_program(["-m", "core", "explain", "--json"], simulator, **options)
    assert done.returncode == 0, done.stderr
    return {row["subject"]: row for row in json.loads(done.stdout)}["accelerator"]


def test_ipus_are_counted_and_win(simulator):
    before = set(sys.modules)
    assert IPUAccelerator.detect() == Found(16)
    assert not any(name.startswith("poptorch") for name in set(sys.modules) - before)
    fabric = Fabric(accelerator="auto")
    assert (fabric.strategy.accelerator.name, type(fabric.strategy).__name__) == ("ipu", "IPUStrategy")
    assert fabric.strategy.num_replicas == 16
    assert explained(simulator)["choice"] == "ipu"


def test_without_devices_the_cpu_is_taken_with_a_reason(simulator, monkeypatch):
    monkeypatch.setenv("POPTORCH_SIMULATED_IPUS", "0")
    reason = "poptorch counts no IPU (ipuHardwareIsAvailable() is False)"
    assert IPUAccelerator.detect() == Absent(reason)
    assert Fabric(accelerator="auto").strategy.accelerator.name == "cpu"
    row = explained(simulator)
    assert (row["choice"], f"ipu: {reason}" in row["reason"]) == ("cpu", True)


def test_without_the_library_the_cpu_is_taken_with_a_reason(simulator):
    row = explained(simulator, is_there=False)
    assert (row["choice"], "ipu: the package poptorch is not installed" in row["reason"]) == ("cpu", True)


def test_a_broken_library_is_an_error_and_not_the_cpu(monkeypatch):
    monkeypatch.setenv("POPTORCH_SIMULATED_IPUS", "broken")
    detection = IPUAccelerator.detect()
    assert isinstance(detection, Broken)
    assert "ImportError: Unable to import PopTorch" in detection.reason
    with pytest.raises(ConfigurationError, match=r"'ipu' .* is here, but it can't be used: poptorch is installed, and"):
        Fabric(accelerator="auto")
