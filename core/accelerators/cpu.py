"""The processor, which any number of processes share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from core.contract.accelerator import Accelerator, Found
from core.contract.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from core.contract.accelerator import Devices


class CPUAccelerator(Accelerator):
    """The processor. `devices=4` means four processes; there may be more of them than cores.

    It is one device without indices, so that a list says no more than its length: `[0]` and
    `[0, 1]` are taken for one and two, and any other list is refused. `devices=-1` is a process a
    core, `"auto"` is one process.
    """

    process_group_backend = "gloo"

    @classmethod
    def detect(cls) -> Found:
        """Count the cores that this process may run on. Every other kind of device comes before
        it.
        """
        return Found(_num_cores(), priority=0)

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """The one CPU, once for each process."""
        import torch

        return [torch.device("cpu")] * len(indices)

    def parse_devices(self, devices: Devices) -> list[int]:
        """Number the processes.

        Raises:
            DeviceError: a list that names anything but the first ones.
        """
        if devices == "auto":
            devices = self.default_num_devices()
        if devices == -1:
            devices = _num_cores()
        if isinstance(devices, int):
            return list(range(devices))
        numbers = list(range(len(devices)))
        if list(devices) != numbers:
            raise DeviceError(
                f"devices={devices!r}: a CPU has no indices to choose from. Expected a number of "
                f"processes: write devices={len(devices)} for {len(devices)} of them."
            )
        return numbers

    def default_num_devices(self) -> int:
        """One: more processes on one CPU are a choice, not a default."""
        return 1

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """The most memory that this process has held so far."""
        import resource

        # macOS counts in bytes, Linux in KiB.
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "peak_resident_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        }


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
