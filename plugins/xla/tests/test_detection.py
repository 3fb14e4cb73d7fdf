"""Finding devices of XLA by looking, without torch_xla."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from core import (
    ACCELERATOR_REGISTRY,
    Absent,
    Broken,
    ConfigurationError,
    DeviceError,
    Found,
    LaunchError,
    Trainer,
)
from core_xla import detection, library
from core_xla.launcher import XLALauncher

needs_torch_xla = pytest.mark.skipif(
    find_spec("torch_xla") is None, reason="needs torch_xla: tox run -e xla"
)


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch):
    for name in ("PJRT_DEVICE", "CPU_NUM_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def bus(folder, *devices):
    for number, (vendor, device) in enumerate(devices):
        place = folder / f"0000:00:{number:02}.0"
        place.mkdir()
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "device").write_text(f"{device}\n")
    return str(folder)


def test_nothing_on_the_bus_is_absent(tmp_path):
    found = detection.detect(bus(tmp_path, ("0x8086", "0x0063")))
    assert found == Absent(
        "no TPU is on this machine's bus; PJRT_DEVICE=CPU lets the processor play such devices"
    )


def test_a_tpu_without_driver_or_library_is_broken(tmp_path):
    """Not absent, so that nobody trains on the CPU without knowing."""
    found = detection.detect(bus(tmp_path, ("0x1ae0", "0x0063")))
    assert isinstance(found, Broken)
    assert "/dev has no file" in found.reason


def test_tpus_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(detection, "_openable_files", lambda: iter(["/dev/accel0"]))
    monkeypatch.setattr(detection, "find_spec", lambda name: name)
    assert detection.detect_tpus(
        bus(tmp_path, ("0x1ae0", "0x0063"), ("0x1ae0", "0x0027"))
    ) == Found(3, 91)


def test_the_processor_plays_devices_when_it_is_told_to(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(detection, "find_spec", lambda name: name)
    assert detection.detect() == Found(1, 90)
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    assert detection.detect() == Found(4, 90)
    assert detection.detect_tpus() == Absent("PJRT_DEVICE='CPU' names another runtime than TPU")
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    assert "it knows TPU and CPU" in detection.detect().reason


@pytest.mark.parametrize(
    ("count", "strategy"),
    [("", "SingleDeviceXLAStrategy"), ("4", "XLASPMDStrategy")],
    ids=["one", "four"],
)
def test_auto_takes_the_devices_that_are_here(monkeypatch, count, strategy):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", count)
    trainer = Trainer(accelerator="auto", logger=False)
    assert trainer.strategy.root_device == torch.device("xla:0")
    assert (type(trainer.strategy).__name__, trainer.strategy.num_devices) == (
        strategy,
        int(count or 1),
    )


def test_a_library_that_cannot_be_loaded_is_an_error_and_not_the_cpu(tmp_path):
    """As that of another release of torch: it is there to be found, and its import fails."""
    package = tmp_path / "torch_xla"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "raise OSError('_XLAC.so: undefined symbol: _ZN5torch')"
    )
    program = "from core import Fabric; Fabric(accelerator='auto').launch()"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "DeviceError: torch_xla can't be imported: OSError('_XLAC.so: undefined symbol" in last
    assert "install both with the same number" in last


def test_a_device_without_torch_xla_is_an_error_and_not_the_cpu(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(detection, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"'xla' .*is here, but it can't be used: its library is missing"
    ):
        Trainer(accelerator="auto")


EXPLAIN = """
import atexit, json, sys
from core.cli import main

atexit.register(lambda: print(json.dumps([name for name in ("torch_xla", "libtpu") if name in sys.modules])))
sys.argv[1:] = ["explain", "--json"]
main()
"""


def test_without_a_device_auto_takes_the_cpu_and_explain_says_why():
    """By looking, without an import."""
    assert Trainer(accelerator="auto", devices=1, logger=False).strategy.root_device.type == "cpu"
    done = subprocess.run(
        [sys.executable, "-c", EXPLAIN], capture_output=True, text=True, check=True, env=os.environ
    )
    *explained, imported = done.stdout.splitlines()
    (row,) = (row for row in json.loads("".join(explained)) if row["subject"] == "accelerator")
    assert row["choice"] == "cpu"
    assert "xla: no TPU is on this machine's bus; PJRT_DEVICE=CPU lets" in row["reason"]
    assert json.loads(imported) == []


@pytest.mark.parametrize("strategy", ["single_tpu", "xla", "xla_spmd", "xla_fsdp"])
def test_a_strategy_of_xla_does_not_train_on_the_cpu(strategy):
    with pytest.raises(
        ConfigurationError,
        match=r"devices of type 'xla', and this run is on 'cpu'\. Pass accelerator='xla'",
    ):
        Trainer(strategy=strategy, accelerator="cpu", devices=1, logger=False)


@pytest.fixture
def four_tpus(monkeypatch):
    monkeypatch.setattr(detection, "detect_tpus", lambda *_: Found(4, 91))


@pytest.mark.usefixtures("four_tpus")
def test_one_tpu_is_used_or_all_of_them():
    create = ACCELERATOR_REGISTRY.create("tpu").parse_devices
    assert [create(devices) for devices in (1, [2], -1, "auto", 4)] == [
        [0],
        [2],
        *[[0, 1, 2, 3]] * 3,
    ]
    for devices in (2, [1, 3]):
        with pytest.raises(
            DeviceError, match=r"asks for 2 of the 4 TPUs .* one of them or all\. Pass devices=1"
        ):
            create(devices)


@pytest.mark.usefixtures("four_tpus")
def test_a_launch_of_fewer_processes_than_tpus_is_refused():
    """torch_xla would make four, of which each trains a model of its own."""
    with pytest.raises(
        LaunchError, match=r"each of the 4 TPUs .* devices=1 were asked for\. Use devices=4"
    ):
        Trainer(strategy="ddp_spawn", accelerator="tpu", devices=1, logger=False)


@pytest.mark.parametrize(
    ("alias", "means"),
    [
        ("single_device", "single_xla"),
        ("ddp", "xla"),
        ("ddp_spawn", "xla"),
        ("fsdp", "xla_fsdp"),
        ("xla_spmd", None),
    ],
)
def test_generic_strategies_mean_those_of_xla(alias, means):
    assert ACCELERATOR_REGISTRY.create("xla").adapt_strategy(alias, 4) == (means or alias)


def test_strategies_of_other_devices_are_refused():
    with pytest.raises(
        ConfigurationError,
        match=r"strategy='deepspeed' can't run on devices of XLA\. Use 'single_xla'",
    ):
        ACCELERATOR_REGISTRY.create("xla").adapt_strategy("deepspeed", 4)


@needs_torch_xla
def test_threads_instead_of_processes_are_refused(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    with pytest.raises(
        LaunchError, match=r"8 devices .* threads of one process .* Use strategy='xla_spmd'"
    ):
        Trainer(strategy="ddp_spawn", accelerator="xla", devices=8, logger=False)


def test_an_error_of_torch_xlas_launch_has_no_cause(tmp_path, monkeypatch):
    """core looks through the causes of an error, of which none may be the error itself."""
    failure = RuntimeError("no device answers")

    def launch(*args, **kwargs):
        raise failure

    monkeypatch.setattr(library, "torch_xla", lambda *name: SimpleNamespace(launch=launch))
    with pytest.raises(RuntimeError, match="no device answers"):
        XLALauncher()._run(tmp_path, 0)
    assert failure.__cause__ is None
