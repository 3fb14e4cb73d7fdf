"""Teaches torch the device type `sim`: a PrivateUse1 backend in Python.

To import this module is to register the device in this process, for good. It has to happen before
the first backward of the process, which is when torch's autograd looks which devices there are.
"""

from __future__ import annotations

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sim_device.host_tensor import HostTensor


class SimModule:
    """The module that torch knows as `torch.sim`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: torch.device) -> None:
        """There is one."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Operations are over when they return."""

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the CPU's."""

    def _is_in_bad_fork(self) -> bool:
        return False


_setup_privateuseone_for_python_backend("sim", SimModule())


class SimTensor(HostTensor):
    """A tensor on `sim:0`."""

    place = torch.device("sim", 0)


SimTensor.register("PrivateUse1")
