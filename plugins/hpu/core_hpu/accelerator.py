"""Gaudi devices, which torch calls `hpu`: found, counted, assigned to processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from core import ConfigurationError, DeviceError
from core.accelerators import TorchDeviceAccelerator
from core_hpu import detection, vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.accelerators import Absent, Broken, Found

_OWN_STRATEGIES = {
    "single_device": "hpu_single",
    "ddp": "hpu_parallel",
    "deepspeed": "hpu_deepspeed",
}
_FIGURES = {"allocated_bytes": "InUse", "peak_allocated_bytes": "MaxInUse", "limit_bytes": "Limit"}


class HPUAccelerator(TorchDeviceAccelerator):
    """Intel Gaudi devices. Each process has one, and calls it `hpu:0`.

    `devices=4` takes the first four modules of the machine, or of those that
    `HABANA_VISIBLE_MODULES` names; `devices=[2, 3]` takes others, by setting that variable while
    the run lasts. A single device is the first one that isn't busy, unless an index is given.
    """

    device_type = "hpu"
    process_group_backend = "hccl"
    priority = detection.PRIORITY

    _modules: list[int] | None = None  # if others than the first ones were asked for
    _before: str | None = None  # what HABANA_VISIBLE_MODULES was

    @classmethod
    def detect(cls) -> Found | Absent | Broken:
        """Ask `hl-smi` which devices there are, and look for `habana_frameworks.torch`, which isn't
        imported.
        """
        return detection.detect()

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """`hpu:0` for every process.

        Raises:
            DeviceError: the vendor's library can't be imported.
        """
        usable = detection.usable_modules()
        chosen = [usable[index] for index in indices] if isinstance(usable, list) else []
        # Local rank n gets the n-th module that is visible: only others than the first ones need
        # the variable.
        self._modules = None if list(indices) == list(range(len(indices))) else chosen
        vendor.load("core")
        return super().torch_devices([0] * len(indices))

    def default_strategy(self, num_devices: int, num_nodes: int) -> str:
        """`hpu_single` or `hpu_parallel`."""
        return "hpu_parallel" if num_devices * num_nodes > 1 else "hpu_single"

    def adapt_strategy(self, alias: str, num_devices: int) -> str:
        """The strategies that know lazy mode and HCCL in the place of the generic ones.

        Raises:
            ConfigurationError: a preset of `ddp`, which is an option here.
        """
        if alias in _OWN_STRATEGIES:
            return _OWN_STRATEGIES[alias]
        if alias.startswith("ddp_"):
            raise ConfigurationError(
                f"strategy={alias!r} doesn't know Gaudi devices. Use strategy='hpu_parallel', and "
                "options for what the preset sets: HPUParallelStrategy(start_method='spawn', "
                "find_unused_parameters=True)."
            )
        return alias

    def setup(self) -> None:
        """All ranks; idempotent. Load the vendor's library, and show it the devices that were asked
        for.
        """
        vendor.load("core")
        super().setup()
        if self._modules is not None and self._before is None:
            self._before = os.environ.get(detection.VISIBLE, "")
            os.environ[detection.VISIBLE] = ",".join(map(str, self._modules))

    def setup_device(self, device: torch.device) -> None:
        """All ranks. Acquire the process's device, now rather than in the middle of the first step.

        Raises:
            DeviceError: it is counted, but can't be used.
        """
        try:
            vendor.load("hpu").current_device()
        except RuntimeError as error:
            raise DeviceError(
                f"A Gaudi device is here, but can't be used: {str(error).splitlines()[0]} "
                "Choose another one with devices=[...], or see with hl-smi who else uses it."
            ) from error

    def teardown(self) -> None:
        """All ranks; idempotent. Restore `HABANA_VISIBLE_MODULES`."""
        if self._before is not None:
            os.environ.pop(detection.VISIBLE)
            if self._before:
                os.environ[detection.VISIBLE] = self._before
            self._before = None

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has done all the work that was launched."""
        vendor.load("hpu").synchronize()

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory in tensors, its peak, and how much there is at most."""
        stats = vendor.load("hpu").memory_stats(device)
        return {name: float(stats[key]) for name, key in _FIGURES.items() if key in stats}
