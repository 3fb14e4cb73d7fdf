"""Any device that torch has a module for: `torch.cuda`, `torch.mps`, or what a vendor registered as
PrivateUse1.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from core.contract.accelerator import Absent, Accelerator, Found
from core.contract.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.contract.accelerator import Detection

_MEMORY_FUNCTIONS = {
    "allocated_bytes": "memory_allocated",
    "peak_allocated_bytes": "max_memory_allocated",
    "reserved_bytes": "memory_reserved",
}


class TorchDeviceAccelerator(Accelerator):
    """A device behind `torch.get_device_module(device_type)`. Meant to be subclassed.

    A subclass sets `device_type`. A vendor's, whose extension has to be imported before torch knows
    the type, names that in `extension`, and overrides `detect` so that it looks for the device
    without the import:

        class AcmeAccelerator(TorchDeviceAccelerator):
            device_type = "acme"
            extension = "torch_acme"

            @classmethod
            def detect(cls):
                count = len(glob.glob("/dev/acme*"))
                return Found(count) if count else Absent("there is no /dev/acme*")

    Anything that the vendor's module doesn't have (memory figures, a random generator) is left out.
    """

    name = ""
    device_type: ClassVar[str]
    """The type of the device, as in `torch.device("acme:0").type`."""

    extension: ClassVar[str | None] = None
    """Module that teaches torch the device type, imported when a device is first asked for; None if
    torch knows it.
    """

    priority: ClassVar[int] = 50
    """See `Found.priority`."""

    @classmethod
    def detect(cls) -> Detection:
        """Count the devices through torch's module. Works for devices that torch itself knows."""
        try:
            module = torch.get_device_module(cls.device_type)
        except RuntimeError:
            return Absent(f"this torch knows no device type {cls.device_type!r}")
        count = module.device_count()
        if not count:
            return Absent(f"torch.{cls.device_type} counts no device")
        return Found(count, cls.priority)

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """One device an index, in the same order.

        Raises:
            DeviceError: the vendor's extension can't be imported.
        """
        self._import_extension()
        return [torch.device(self.device_type, index) for index in indices]

    def setup(self) -> None:
        """All ranks; idempotent. Teach torch the device type."""
        self._import_extension()

    def setup_device(self, device: torch.device) -> None:
        """All ranks. Make `device` the current one of this process.

        Raises:
            DeviceError: it is counted, but can't be used.
        """
        select = getattr(self._module, "set_device", None)
        if select is None:
            return
        try:
            select(device)
        except RuntimeError as error:
            cure = "Choose another one with devices=[...], or see who else uses it."
            if getattr(self._module, "_is_in_bad_fork", bool)():
                cure = (
                    "An import or a call has asked for devices before the fork: use the start "
                    "method 'spawn'."
                )
            raise DeviceError(
                f"{device} is here, but can't be used: {str(error).splitlines()[0]} {cure}"
            ) from error

    def teardown(self) -> None:
        """All ranks; idempotent. Give memory that no tensor needs any more back to the device."""
        # Torch may not have met the device. After an exception it may be what has failed, and would
        # fail again.
        module: Any = getattr(torch, self.device_type, None)
        is_in_use: Any = getattr(module, "is_initialized", getattr(module, "is_available", bool))
        if sys.exc_info()[0] is None and is_in_use() and hasattr(module, "empty_cache"):
            module.empty_cache()

    def synchronize(self, device: torch.device) -> None:
        """Wait until `device` has done all the work that was queued."""
        self._module.synchronize(device)

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory that torch's allocator holds on `device`; of which `allocated` is in tensors."""
        module = self._module
        return {
            name: float(getattr(module, function)(device))
            for name, function in _MEMORY_FUNCTIONS.items()
            if hasattr(module, function)
        }

    def get_rng_state(self, device: torch.device) -> torch.Tensor | None:
        """State of the device's own random generator: a uint8 CPU tensor of shape (n,), or None if
        it has none.
        """
        if not hasattr(self._module, "get_rng_state"):
            return None
        state: torch.Tensor = self._module.get_rng_state(device)
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Restore what `get_rng_state` returned; nothing if there is no generator."""
        if hasattr(self._module, "set_rng_state"):
            self._module.set_rng_state(state, device)

    def _import_extension(self) -> None:
        if self.extension is None:
            return
        try:
            importlib.import_module(self.extension)
        except Exception as error:
            # a shared library that is missing is an OSError, another version an assertion
            raise DeviceError(
                f"Accelerator {self.name!r} needs the module {self.extension!r}, and its import "
                f"raised {error!r}. Install the vendor's extension for this release of torch."
            ) from error

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self.device_type)
