import os

import pytest
import torch

from core.accelerators import CPUAccelerator, Found
from core.contract import DeviceError


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system keeps no process to some cores"
)
def test_only_cores_that_this_process_may_use_are_counted(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 6})
    assert CPUAccelerator.detect() == Found(3, priority=0)
    assert CPUAccelerator().parse_devices(-1) == [0, 1, 2]


@pytest.mark.parametrize(
    ("devices", "number"), [(1, 1), (3, 3), (1000, 1000), ([0], 1), ([0, 1], 2), ("auto", 1)]
)
def test_devices_are_processes(devices, number):
    accelerator = CPUAccelerator()
    indices = accelerator.parse_devices(devices)
    assert indices == list(range(number))
    assert accelerator.torch_devices(indices) == [torch.device("cpu")] * number


@pytest.mark.parametrize("devices", [[1, 3], [1], [1, 0]])
def test_a_cpu_has_no_indices_to_choose_from(devices):
    with pytest.raises(
        DeviceError, match=rf"has no indices to choose from.*write devices={len(devices)}"
    ):
        CPUAccelerator().parse_devices(devices)


def test_memory_is_what_the_process_has_held():
    block = torch.ones(100 * 2**20, dtype=torch.uint8)
    assert CPUAccelerator().memory_stats(torch.device("cpu"))["peak_resident_bytes"] >= block.nbytes
