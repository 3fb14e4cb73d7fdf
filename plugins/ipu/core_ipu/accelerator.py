"""The accelerator for IPUs: detection, and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import Accelerator, ConfigurationError, DeviceError
from core_ipu import detection

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from core import Absent, Broken, Found

_ALIAS = "ipu_strategy"
_OF_OTHER_DEVICES = ("ddp", "deepspeed", "dp", "fsdp", "model_parallel")


class IPUAccelerator(Accelerator):
    """Graphcore's IPUs. They take whole programs, with tensors from the host: no tensor is made on
    one.

    `devices=8` replicates the model over 8 IPUs of one machine or partition, and PopTorch decides
    which.
    """

    name = "ipu"

    @classmethod
    def detect(cls) -> Found | Absent | Broken:
        """Look for PopTorch without an import, and let it count where it is."""
        return detection.detect()

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """One of torch's type `ipu` an index: a name, on which torch by itself can't make
        tensors.
        """
        import torch

        return [torch.device("ipu", index) for index in indices]

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Number the IPUs.

        Raises:
            DeviceError: more than there are; not a power of two; or a list that names anything but
                the first ones.
        """
        indices = super().parse_devices(devices)
        if indices != list(range(len(indices))):
            raise DeviceError(
                f"devices={devices!r}: PopTorch chooses the IPUs itself. Write "
                f"devices={len(indices)} for {len(indices)} of them; "
                "poptorch.Options().useIpuId(...) as training_opts names a group of them."
            )
        if len(indices) & (len(indices) - 1):
            raise DeviceError(
                f"devices={devices!r}: PopTorch uses IPUs in powers of two, and {len(indices)} is "
                f"none. Use devices={1 << len(indices).bit_length() - 1}."
            )
        return indices

    def default_strategy(self, num_devices: int, num_nodes: int) -> str:
        """The one that compiles for IPUs."""
        return _ALIAS

    def adapt_strategy(self, alias: str, num_devices: int) -> str:
        """The one that compiles for IPUs in the place of `single_device`.

        Raises:
            ConfigurationError: a strategy that computes with tensors on the device.
        """
        if alias == "single_device":
            return _ALIAS
        if alias.split("_")[0] in _OF_OTHER_DEVICES or alias in _OF_OTHER_DEVICES:
            raise ConfigurationError(
                f"strategy={alias!r} computes with tensors on its devices, and IPUs run compiled "
                f"programs only. Leave the strategy out, or use strategy={_ALIAS!r}, which "
                "replicates a model over the devices."
            )
        return alias

    def setup_device(self, device: torch.device) -> None:
        """Nothing: PopTorch attaches to IPUs when a program runs."""
