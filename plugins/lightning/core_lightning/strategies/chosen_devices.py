"""The accelerator and devices that arguments lead to, as packages ask for them before they make a
Trainer.
"""

from __future__ import annotations

from typing import Any

from core import Fabric


class _AcceleratorConnector:
    """Chooses an accelerator and devices, without a Trainer. Lightning has more under this name;
    packages read these.

    Attributes:
        _accelerator_flag: `"cpu"`, `"cuda"` or `"mps"`.
        _devices_flag: the number of processes on a CPU, else the indices of the devices.
    """

    def __init__(self, *, accelerator: Any = "auto", devices: Any = "auto", **_: Any) -> None:
        found = Fabric(accelerator=accelerator, devices=devices).strategy.parallel_devices
        self._accelerator_flag = found[0].type
        self._devices_flag: int | list[int] = len(found)
        if self._accelerator_flag != "cpu":
            self._devices_flag = [device.index or 0 for device in found]

    def _choose_auto_accelerator(self, *_: Any) -> str:
        return self._accelerator_flag
