"""The kinds of device that need no package of their own; those of installed plugins can be imported from here too."""

from typing import TYPE_CHECKING, Any

from core.contract.accelerator import Absent, Accelerator, Broken, Found

if TYPE_CHECKING:
    from core.accelerators.cpu import CPUAccelerator
    from core.accelerators.cuda import CUDAAccelerator
    from core.accelerators.mps import MPSAccelerator
    from core.accelerators.torch_device import TorchDeviceAccelerator
    from core.accelerators.usable_cuda import find_usable_cuda_devices

__all__ = [
    "Absent",
    "Accelerator",
    "Broken",
    "CPUAccelerator",
    "CUDAAccelerator",
    "Found",
    "MPSAccelerator",
    "TorchDeviceAccelerator",
    "find_usable_cuda_devices",
]

_MODULES = {
    "CPUAccelerator": "core.accelerators.cpu",
    "CUDAAccelerator": "core.accelerators.cuda",
    "MPSAccelerator": "core.accelerators.mps",
    "TorchDeviceAccelerator": "core.accelerators.torch_device",
    "find_usable_cuda_devices": "core.accelerators.usable_cuda",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="accelerator", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
