"""The kinds of device that need no package of their own; those of installed plugins can be imported
from here too.
"""

from typing import TYPE_CHECKING

from core.contract.accelerator import Absent, Accelerator, Broken, Found
from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.accelerators.cpu import CPUAccelerator
    from core.accelerators.cuda import CUDAAccelerator
    from core.accelerators.mps import MPSAccelerator
    from core.accelerators.torch_device import TorchDeviceAccelerator

__all__ = [
    "Absent",
    "Accelerator",
    "Broken",
    "CPUAccelerator",
    "CUDAAccelerator",
    "Found",
    "MPSAccelerator",
    "TorchDeviceAccelerator",
]

__getattr__, __dir__ = lazy_exports(__name__, kind="accelerator")
