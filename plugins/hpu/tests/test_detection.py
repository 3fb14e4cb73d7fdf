"""Devices are found by the vendor's tool, and a library that is looked for and not imported."""

import sys

import pytest

from core import ConfigurationError
from core.accelerators import Absent, Broken, Found
from core_hpu import HPUAccelerator, detection, presets

TOOL = "#!/bin/sh\n{}\n"
LISTS_FOUR = "printf 'module_id\\n3\\n1\\n0\\n2\\n'"


class Machine:
    """A folder in the place of the machine's programs and Python's packages."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.delenv(detection.VISIBLE, raising=False)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(detection, "DRIVER_FILES", str(folder / "driver" / "*:*"))

    def add_tool(self, does=LISTS_FOUR):
        (self.folder / "hl-smi").write_text(TOOL.format(does))
        (self.folder / "hl-smi").chmod(0o755)

    def add_package(self, *names):
        folder = self.folder / "habana_frameworks"
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text("raise AssertionError('imported')")

    def add_driver(self):
        (self.folder / "driver").mkdir()
        (self.folder / "driver" / "0000:33:00.0").touch()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_devices_and_their_library_are_found_without_an_import(machine):
    machine.add_tool()
    machine.add_package("torch")
    assert HPUAccelerator.detect() == Found(4, priority=80)
    assert not [name for name in sys.modules if name.startswith("habana_frameworks")]


def test_the_name_of_another_package_is_not_the_library(machine):
    """habana-media-loader makes `habana_frameworks`, and no `habana_frameworks.torch`."""
    machine.add_package("medialoaders")
    assert HPUAccelerator.detect() == Absent(
        "hl-smi isn't on the PATH and habana_frameworks.torch isn't installed"
    )
    machine.add_tool()
    found = HPUAccelerator.detect()
    assert isinstance(found, Broken)
    assert "lists 4 Gaudi devices, and habana_frameworks.torch isn't installed" in found.reason


def test_a_library_without_devices_is_in_order(machine):
    machine.add_package("torch")
    assert HPUAccelerator.detect() == Absent("hl-smi isn't on the PATH")


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("echo module_id", "hl-smi lists no Gaudi device"),
        ("echo 'no driver' >&2; exit 9", "no driver"),
    ],
)
def test_a_tool_that_lists_nothing(machine, does, reason):
    """In order without a device of the driver's, and broken with one."""
    machine.add_tool(does)
    machine.add_package("torch")
    found = HPUAccelerator.detect()
    assert isinstance(found, Absent)
    assert reason in found.reason
    machine.add_driver()
    found = HPUAccelerator.detect()
    assert isinstance(found, Broken)
    assert "the driver has a Gaudi device" in found.reason
    assert reason in found.reason


def test_a_tool_that_cannot_run_may_have_devices_to_tell_of(machine):
    machine.add_tool()
    (machine.folder / "hl-smi").write_bytes(b"\x7fELF, and no more")
    found = HPUAccelerator.detect()
    assert isinstance(found, Broken)
    assert "hl-smi didn't answer" in found.reason


@pytest.mark.parametrize(
    ("told", "modules"),
    [("2,3", [2, 3]), ("3,9", [3]), ("7", Absent), ("0,x", Broken), ("", [0, 1, 2, 3])],
)
def test_some_devices_are_shown(machine, monkeypatch, told, modules):
    machine.add_tool()
    monkeypatch.setattr(detection, "_modules_by", lambda tool: (0, 1, 2, 3))
    monkeypatch.setenv(detection.VISIBLE, told)
    found = detection.usable_modules()
    if isinstance(modules, list):
        assert found == modules
    else:
        assert isinstance(found, modules)
        assert repr(told) in found.reason


def test_the_vendors_deepspeed_is_refused(monkeypatch):
    """Before work, where core-deepspeed isn't installed either."""
    monkeypatch.setattr(
        "core_hpu.presets.metadata.version", lambda name: "0.14.4+hpu.synapse.v1.23.0"
    )
    with pytest.raises(
        ConfigurationError,
        match=r"needs DeepSpeed 0\.19, and 0\.14\.4\+hpu.* no release serves both",
    ):
        presets.hpu_deepspeed()


def test_the_other_name_and_deepspeed_are_offered():
    from core import STRATEGY_REGISTRY

    assert STRATEGY_REGISTRY.get("single_hpu") is STRATEGY_REGISTRY.get("hpu_single")
    pytest.importorskip("core_deepspeed")
    strategy = STRATEGY_REGISTRY.create("hpu_deepspeed", stage=3)
    assert (type(strategy).__name__, strategy.stage) == ("HPUDeepSpeedStrategy", 3)
