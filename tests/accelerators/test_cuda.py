"""The part that can be shown without a GPU: this torch may have been built for one or not."""

import pytest
import torch

from core.accelerators import (
    Absent,
    Broken,
    CUDAAccelerator,
    Found,
    MPSAccelerator,
)
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


def test_counted_devices_come_before_all_others(built_with_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert CUDAAccelerator.detect() == Found(2, priority=100)
    assert CUDAAccelerator().parse_devices(-1) == [0, 1]
    assert CUDAAccelerator().torch_devices([1]) == [torch.device("cuda", 1)]
    with pytest.raises(
        DeviceError, match="asks accelerator 'cuda' for device 2, but there are 2 here"
    ):
        CUDAAccelerator().parse_devices([0, 2])


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
