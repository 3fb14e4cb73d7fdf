"""The part that can be shown without a GPU: this torch may have been built for one or not."""

import pytest
import torch

from core.accelerators import (
    Absent,
    Broken,
    CUDAAccelerator,
    Found,
    MPSAccelerator,
    find_usable_cuda_devices,
)
from core.accelerators.cuda_probe import probe
from core.contract import DeviceError

without_cuda = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a CUDA device")


@pytest.fixture
def built_with_cuda(monkeypatch, tmp_path):
    """A torch that says that it was built for CUDA, and a folder in place of /dev."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(CUDAAccelerator, "device_files", (str(tmp_path / "nvidia[0-9]*"),))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@without_cuda
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch was built with CUDA")
def test_a_torch_without_cuda_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(CUDAAccelerator, "device_files", (str(tmp_path / "nvidia*"),))
    assert CUDAAccelerator.detect() == Absent("this torch was built without CUDA")
    (tmp_path / "nvidia0").touch()
    assert "nvidia0 is there: install a build of torch for it" in CUDAAccelerator.detect().reason


@without_cuda
def test_no_driver_is_no_error(built_with_cuda):
    assert CUDAAccelerator.detect() == Absent("the driver counts no GPU")


@without_cuda
def test_a_device_that_torch_does_not_count_is_broken(built_with_cuda):
    (built_with_cuda / "nvidia0").touch()
    detection = CUDAAccelerator.detect()
    assert isinstance(detection, Broken)
    assert "nvidia0 is there, but torch counts no GPU" in detection.reason
    assert "driver has to be as new as" in detection.reason


@without_cuda
def test_hidden_devices_are_absent_and_not_broken(built_with_cuda, monkeypatch):
    (built_with_cuda / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert CUDAAccelerator.detect() == Absent("CUDA_VISIBLE_DEVICES='' hides every GPU")


@pytest.fixture
def two_devices(built_with_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_counted_devices_come_before_all_others(two_devices):
    assert CUDAAccelerator.detect() == Found(2, priority=100)
    assert CUDAAccelerator().parse_devices(-1) == [0, 1]
    assert CUDAAccelerator().torch_devices([1]) == [torch.device("cuda", 1)]
    with pytest.raises(
        DeviceError, match="asks accelerator 'cuda' for device 2, but there are 2 here"
    ):
        CUDAAccelerator().parse_devices([0, 2])


def test_devices_are_tried_until_enough_work(monkeypatch):
    def zeros(size, device):
        if device == "cuda:0":
            raise RuntimeError("out of memory\nand more")
        return torch.ones(size)

    monkeypatch.setattr(torch, "zeros", zeros)
    assert probe(3, 1) == ([1], {0: "out of memory"})
    assert probe(3, -1) == ([1, 2], {0: "out of memory"})


@without_cuda
def test_without_a_device_none_is_usable():
    with pytest.raises(DeviceError, match=r"No CUDA device is here: .*Expected 2 usable"):
        find_usable_cuda_devices(2)
    with pytest.raises(DeviceError, match="Expected at least 1 usable device"):
        find_usable_cuda_devices()


@pytest.mark.parametrize("number", [0, -2, True, "2", 1.0])
def test_a_number_that_is_none(number):
    with pytest.raises(DeviceError, match="expected a number of devices from 1, or -1 for all"):
        find_usable_cuda_devices(number)


@pytest.mark.slow
@without_cuda
def test_each_device_is_tried_and_the_reasons_are_told(two_devices):
    """Two devices are counted, and a real allocation fails on each, in the process that tries
    it.
    """
    message = r"Expected 1 usable, and 0 of 2 can be used; device 0: .*; device 1: "
    with pytest.raises(DeviceError, match=message):
        find_usable_cuda_devices(1)
    assert not torch.cuda.is_initialized()


@pytest.fixture
def metal(monkeypatch):
    """A torch that was built with MPS, on a machine that has it."""
    for name in ("is_built", "is_available"):
        monkeypatch.setattr(torch.backends.mps, name, lambda: True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("is_built", "this torch was built without MPS"),
        ("is_available", "this machine has no Metal GPU"),
    ],
)
def test_a_machine_without_metal(metal, monkeypatch, name, reason):
    monkeypatch.setattr(torch.backends.mps, name, lambda: False)
    assert MPSAccelerator.detect() == Absent(reason)


def test_a_machine_with_metal_has_one_gpu(metal):
    assert MPSAccelerator.detect() == Found(1, priority=90)
    for devices in (1, -1, "auto", [0]):
        assert MPSAccelerator().torch_devices(MPSAccelerator().parse_devices(devices)) == [
            torch.device("mps", 0)
        ]
    with pytest.raises(
        DeviceError, match="asks accelerator 'mps' for device 1, but there are 1 here"
    ):
        MPSAccelerator().parse_devices(2)
