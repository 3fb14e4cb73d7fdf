"""GPUs that torch drives through CUDA or ROCm."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, ClassVar

import torch

from core.accelerators.torch_device import TorchDeviceAccelerator
from core.contract.accelerator import Absent, Broken, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection

_BUILD = (
    "The driver has to be as new as what this torch was built for: "
    f"{torch.version.cuda or torch.version.hip}."
)
_SELECTORS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class CUDAAccelerator(TorchDeviceAccelerator):
    """GPUs of NVIDIA, and those of AMD, which torch calls `cuda` too."""

    device_type = "cuda"
    priority = 100
    device_files: ClassVar[tuple[str, ...]] = ("/dev/nvidia[0-9]*", "/dev/kfd")
    """Patterns of the files that a driver puts up for its devices."""

    @classmethod
    def detect(cls) -> Detection:
        """Count them through the driver's management library (NVML), which makes no context: a
        later fork works.
        """
        present = [file for pattern in cls.device_files for file in glob.glob(pattern)]
        if torch.version.cuda is None and torch.version.hip is None:
            reason = "this torch was built without CUDA"
            if present:
                reason += (
                    f", though {present[0]} is there: install a build of torch for it to use it"
                )
            return Absent(reason)
        count = torch.cuda.device_count()
        if count:
            return Found(count, cls.priority)
        # Before the files: they are there too when the user hides the GPUs, which is a choice and
        # no fault.
        for name in _SELECTORS:
            if name in os.environ:
                return Absent(f"{name}={os.environ[name]!r} hides every GPU")
        if present:
            return Broken(
                f"{present[0]} is there, but torch counts no GPU. See whether nvidia-smi lists it. "
                f"{_BUILD}"
            )
        return Absent("the driver counts no GPU")
