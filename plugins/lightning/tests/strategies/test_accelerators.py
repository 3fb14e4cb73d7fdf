"""Core's accelerators have Lightning's methods."""

import torch

from core.accelerators import CPUAccelerator


def test_cores_own_are_asked_as_lightnings_are(installed):
    accelerators = installed("lightning.pytorch.accelerators")
    assert accelerators.CPUAccelerator.is_available()
    assert accelerators.CPUAccelerator.auto_device_count() == 1
    assert accelerators.CPUAccelerator.get_parallel_devices(2) == [torch.device("cpu")] * 2
    assert accelerators.CUDAAccelerator.is_available() == torch.cuda.is_available()
    assert isinstance(accelerators.CPUAccelerator().get_device_stats(torch.device("cpu")), dict)
    for kind in (accelerators.Accelerator, accelerators.CPUAccelerator):
        assert isinstance(CPUAccelerator(), kind)
    assert not isinstance(CPUAccelerator(), accelerators.CUDAAccelerator)
