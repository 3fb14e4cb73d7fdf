"""The GPU of an Apple machine, through Metal Performance Shaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core.accelerators.torch_device import TorchDeviceAccelerator
from core.contract.accelerator import Absent, Found

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.accelerator import Detection


class MPSAccelerator(TorchDeviceAccelerator):
    """The one GPU of an Apple machine."""

    device_type = "mps"
    priority = 90

    @classmethod
    def detect(cls) -> Detection:
        """Ask torch whether it was built with Metal, and whether this machine has it."""
        if not torch.backends.mps.is_built():
            return Absent("this torch was built without MPS")
        if not torch.backends.mps.is_available():
            return Absent("this machine has no Metal GPU")
        return Found(1, cls.priority)

    def synchronize(self, device: torch.device) -> None:
        """Wait until the GPU has done all the work that was queued."""
        torch.mps.synchronize()

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory in tensors, memory that Metal holds for them, and how much is recommended at
        most.
        """
        return {
            "allocated_bytes": float(torch.mps.current_allocated_memory()),
            "driver_allocated_bytes": float(torch.mps.driver_allocated_memory()),
            "recommended_max_bytes": float(torch.mps.recommended_max_memory()),
        }
