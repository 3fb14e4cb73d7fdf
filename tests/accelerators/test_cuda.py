"""The part that can be shown without a GPU: this torch may have been built for one or not."""

import pytest
import torch

from core.accelerators import Absent, Broken, CUDAAccelerator, Found, MPSAccelerator, find_usable_cuda_devices
from core.contract import DeviceError
from core_testing import Backend

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
    with pytest.raises(DeviceError, match="asks accelerator 'cuda' for device 2, but there are 2 here"):
        CUDAAccelerator().parse_devices([0, 2])
    with pytest.raises(DeviceError, match="asks accelerator 'cuda' for device 5, but there are 2 here"):
        CUDAAccelerator().parse_devices([5])


@without_cuda
def test_detection_does_not_initialize_cuda():
    CUDAAccelerator.detect()
    assert not torch.cuda.is_initialized()


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
def test_each_device_is_tried_and_the_reasons_are_told(monkeypatch):
    """Two devices are counted, and a real allocation fails on each, in the process that tries it."""
    monkeypatch.setattr(CUDAAccelerator, "detect", classmethod(lambda cls: Found(2)))
    with pytest.raises(DeviceError) as caught:
        find_usable_cuda_devices(1)
    assert "Expected 1 usable, and 0 of 2 can be used; device 0: " in str(caught.value)
    assert "; device 1: " in str(caught.value)
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="needs a CUDA device")
def test_a_real_device():
    Backend(lambda: "single_device").run(use_device)


def use_device(rank):
    assert 0 in find_usable_cuda_devices()
    accelerator, device = CUDAAccelerator(), torch.device("cuda:0")
    accelerator.setup_device(device)
    block = torch.ones(2**20, device=device)
    accelerator.synchronize(device)
    assert accelerator.memory_stats(device)["allocated_bytes"] >= block.nbytes
    state = accelerator.get_rng_state(device)
    drawn = torch.rand(4, device=device)
    accelerator.set_rng_state(state, device)
    assert torch.equal(torch.rand(4, device=device), drawn)


@pytest.mark.skipif(torch.backends.mps.is_built(), reason="this torch was built with MPS")
def test_a_torch_without_mps():
    assert MPSAccelerator.detect() == Absent("this torch was built without MPS")


def test_a_machine_without_metal(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert MPSAccelerator.detect() == Absent("this machine has no Metal GPU")


def test_a_machine_with_metal_has_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert MPSAccelerator.detect() == Found(1, priority=90)
    for devices in (1, -1, "auto", [0]):
        assert MPSAccelerator().torch_devices(MPSAccelerator().parse_devices(devices)) == [torch.device("mps", 0)]
    with pytest.raises(DeviceError, match="asks accelerator 'mps' for device 1, but there are 1 here"):
        MPSAccelerator().parse_devices(2)
