"""The accelerator by which core finds the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.accelerators import Found, TorchDeviceAccelerator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

NUM_DEVICES = 4
_STRATEGIES = {
    "single_device": "sim_single",
    "ddp": "sim_parallel",
    "ddp_fork": "sim_parallel_fork",
}


class SimAccelerator(TorchDeviceAccelerator):
    """Four devices that compute on the CPU, and refuse tensors of any other device as real ones
    do.
    """

    device_type = "sim"
    extension = "sim_device.backend"
    process_group_backend = "gloo"

    @classmethod
    def detect(cls) -> Found:
        """They are everywhere; behind the CPU, so that nobody gets one without asking."""
        return Found(NUM_DEVICES, priority=-10)

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """Each process sees one, and calls it `sim:0`: more of them a backend in Python can't
        have.
        """
        return super().torch_devices([0] * len(indices))

    def default_num_devices(self) -> int:
        """One: they share one CPU."""
        return 1

    def default_strategy(self, num_devices: int, num_nodes: int) -> str | None:
        """Our own: torch's collectives and files know nothing of the device."""
        return "sim_parallel" if num_devices * num_nodes > 1 else "sim_single"

    def adapt_strategy(self, alias: str, num_devices: int) -> str:
        """Our own in the place of the generic ones."""
        return _STRATEGIES.get(alias, alias)
