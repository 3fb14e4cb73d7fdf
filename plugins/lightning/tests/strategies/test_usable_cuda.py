"""The part that can be shown without a GPU."""

import pytest
import torch

from core import DeviceError
from core.accelerators import CUDAAccelerator
from core_lightning.strategies.cuda_probe import probe
from core_lightning.strategies.usable_cuda import find_usable_cuda_devices

without_cuda = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a CUDA device")


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
def test_each_device_is_tried_and_the_reasons_are_told(monkeypatch):
    """Torch says that it was built for CUDA, and counts two devices; a real allocation fails on
    each, in the process that tries it.
    """
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(CUDAAccelerator, "device_files", ())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    message = r"Expected 1 usable, and 0 of 2 can be used; device 0: .*; device 1: "
    with pytest.raises(DeviceError, match=message):
        find_usable_cuda_devices(1)
    assert not torch.cuda.is_initialized()
