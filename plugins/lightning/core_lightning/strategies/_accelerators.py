"""Core's accelerators with Lightning's methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from core import Found
from core.accelerators import CPUAccelerator as CoreCPUAccelerator
from core.accelerators import CUDAAccelerator as CoreCUDAAccelerator
from core.accelerators import MPSAccelerator as CoreMPSAccelerator
from core_lightning.strategies._environments import in_lightnings_form


class _InLightningsForm:
    """An accelerator of core's under Lightning's names. Stands before core's class."""

    @classmethod
    def is_available(cls) -> bool:
        """True if such devices are here."""
        return isinstance(cls.detect(), Found)  # type: ignore[attr-defined]  # of the other base

    @classmethod
    def auto_device_count(cls) -> int:
        """Number of devices that `devices="auto"` takes."""
        return int(cls().default_num_devices())  # type: ignore[attr-defined]

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:
        """The devices of these indices, or as many as this number."""
        if isinstance(devices, int):
            devices = range(devices)
        return list(cls().torch_devices(devices))  # type: ignore[attr-defined]

    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory of `device`, by name."""
        return dict(self.memory_stats(device))  # type: ignore[attr-defined]


CPUAccelerator = in_lightnings_form("CPUAccelerator", _InLightningsForm, CoreCPUAccelerator)
CUDAAccelerator = in_lightnings_form("CUDAAccelerator", _InLightningsForm, CoreCUDAAccelerator)
MPSAccelerator = in_lightnings_form("MPSAccelerator", _InLightningsForm, CoreMPSAccelerator)
