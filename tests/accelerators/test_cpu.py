import os

import pytest
import torch

from core.accelerators import CPUAccelerator, Found
from core.contract import DeviceError


def test_it_is_always_here_and_comes_last():
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert CPUAccelerator.detect() == Found(count, priority=0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process to some cores")
def test_only_cores_that_this_process_may_use_are_counted():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert CPUAccelerator.detect().count == 1
        assert CPUAccelerator().parse_devices(-1) == [0]
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("devices", "number"), [(1, 1), (3, 3), (1000, 1000), ([0], 1), ([0, 1], 2), ("auto", 1)])
def test_devices_are_processes(devices, number):
    accelerator = CPUAccelerator()
    indices = accelerator.parse_devices(devices)
    assert indices == list(range(number))
    assert accelerator.torch_devices(indices) == [torch.device("cpu")] * number


def test_all_devices_are_a_process_a_core():
    assert len(CPUAccelerator().parse_devices(-1)) == CPUAccelerator.detect().count


@pytest.mark.parametrize("devices", [[1, 3], [1], [1, 0]])
def test_a_cpu_has_no_indices_to_choose_from(devices):
    with pytest.raises(DeviceError, match=rf"has no indices to choose from.*write devices={len(devices)}"):
        CPUAccelerator().parse_devices(devices)


def test_memory_is_what_the_process_holds():
    before = CPUAccelerator().memory_stats(torch.device("cpu"))["peak_resident_bytes"]
    block = torch.ones(100 * 2**20, dtype=torch.uint8)
    after = CPUAccelerator().memory_stats(torch.device("cpu"))["peak_resident_bytes"]
    assert before > 50 * 2**20
    assert after >= max(before, block.nbytes)


def test_its_generator_is_torchs_own():
    assert CPUAccelerator().get_rng_state(torch.device("cpu")) is None
