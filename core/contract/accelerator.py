"""The Accelerator contract: detects, parses and selects the devices of one kind."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.contract.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    import torch

Devices: TypeAlias = "int | str | Sequence[int]"
"""The argument `devices`: a number, indices, or text such as `"1,3"` and `"auto"`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The finding that it is here.

    Attributes:
        count: number of devices, or of processes for a cluster environment.
        priority: among those found, the highest one wins `"auto"`. The CPU has 0, CUDA 100.
    """

    count: int
    priority: int = 50


@dataclass(frozen=True, slots=True)
class Absent:
    """The finding that it isn't here, which is in order. `reason`: the evidence,
    `"torch was built without CUDA"`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The finding that it is here and can't be used.

    With `"auto"` this is an error: the core never falls back to the CPU in silence.
    """

    reason: str


if TYPE_CHECKING:
    Detection: TypeAlias = Found | Absent | Broken


class Accelerator(abc.ABC):
    """A kind of device. Meant to be subclassed; `detect` and `torch_devices` are all that a new
    device needs.

    The call sequence:

    1. `detect()`, main process, before anything else. It must be cheap, make no context on the
       device, and import neither torch's vendor extension nor the vendor's library.
    2. `parse_devices(devices)`, main process: what the user wrote becomes indices.
    3. `default_strategy(...)` or `adapt_strategy(...)`, main process.
    4. `torch_devices(indices)`, all ranks: one `torch.device` an index.
    5. `setup()`, all ranks, idempotent; then `setup_device(device)`: the rank's own device becomes
       current.
    6. `teardown()`, all ranks, idempotent, also after an exception.
    """

    name: ClassVar[str] = ""
    """Its name in messages, such as `"cuda"`. Empty: the class name in lower case, without
    `Accelerator`.
    """

    process_group_backend: ClassVar[str | None] = None
    """torch.distributed's backend for this device; None asks torch's own table by device type."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.removesuffix("Accelerator").lower()

    @classmethod
    @abc.abstractmethod
    def detect(cls) -> Detection:
        """Detect devices of this kind, without touching one."""

    @abc.abstractmethod
    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """One device an index, in the same order."""

    def parse_devices(self, devices: Devices) -> list[int]:
        """Turn what the user wrote into indices of devices.

        The core has checked the form already and hands over a number (`2`), `-1` for all, `"auto"`,
        or a sequence of distinct indices. The default takes the first ones of those that `detect`
        counted, for `"auto"` as many as `default_num_devices` says.

        Raises:
            DeviceError: more devices, or other ones, than are here.
        """
        found, count, reason = self.detect(), 0, ""
        if isinstance(found, Found):
            count = found.count
        else:
            reason = f"; {found.reason}"
        if devices == "auto":
            indices = list(range(self.default_num_devices()))
        elif isinstance(devices, int) and devices >= 0:
            indices = list(range(devices))
        elif isinstance(devices, int | str):
            indices = list(range(count))
        else:
            indices = list(devices)
        beyond = [index for index in indices if index >= count]
        if beyond:
            raise DeviceError(
                f"devices={devices!r} asks accelerator {self.name!r} for device {beyond[0]}, "
                f"but there are {count} here{reason}. Ask for at most {count}, or use another "
                "accelerator."
            )
        return indices

    def default_num_devices(self) -> int:
        """Number of devices that `devices="auto"` takes: all that are here. The CPU takes one."""
        found = self.detect()
        return found.count if isinstance(found, Found) else 0

    def default_strategy(self, num_devices: int, num_nodes: int) -> str | None:
        """The alias that answers `strategy="auto"`, or None for the core's own choice.

        The core's own choice is one device without communication, or its generic strategy for
        several.
        """
        return None

    def adapt_strategy(self, alias: str, num_devices: int) -> str:
        """Map a generic alias to the one that makes sense on this device.

        Raises:
            ConfigurationError: none does; the message names the alias to use instead.
        """
        return alias

    def setup(self) -> None:
        """All ranks; idempotent. Prepare this process for devices of this kind."""

    def setup_device(self, device: torch.device) -> None:
        """All ranks. Make `device` the current one of this process."""

    def teardown(self) -> None:
        """All ranks; idempotent. Give back what `setup` took."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until `device` has done all the work that was queued."""

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory of `device`, by name with the unit in it, such as
        `{"allocated_bytes": 1024.0}`.
        """
        return {}

    def get_rng_state(self, device: torch.device) -> torch.Tensor | None:
        """State of the device's own random generator: a uint8 CPU tensor of shape (n,), or None if
        it has none.
        """
        return None

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Restore what `get_rng_state` returned."""
