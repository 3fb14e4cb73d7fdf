"""Accelerators in Lightning's form: a program's own has Lightning's methods, and core calls them
under its names.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from core import Absent, Callback, ConfigurationError, Found, Trainer
from core.accelerators import Accelerator as CoreAccelerator
from core.accelerators import CPUAccelerator as CoreCPUAccelerator
from core.accelerators import CUDAAccelerator as CoreCUDAAccelerator
from core.accelerators import MPSAccelerator as CoreMPSAccelerator
from core_lightning.strategies._environments import KnowsCores, in_lightnings_form

_BELOW_THE_CPU = -1
"""The priority of a program's own device: as under Lightning, `"auto"` never takes it."""


class _Name(str):
    """A name that may be called, since `name` is a method under Lightning."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


class _Indices(list[int]):
    """Indices of devices, and what the program's `parse_devices` made of the argument."""

    parsed: Any


class Accelerator(CoreAccelerator, metaclass=KnowsCores):
    """The base of a program's own accelerator. Meant to be subclassed, with Lightning's methods.

    core calls them under its own names: `detect` calls `is_available` and `auto_device_count`,
    `torch_devices` calls `get_parallel_devices`, `memory_stats` calls `get_device_stats`. `setup`
    gets the Trainer, on each rank.
    """

    _core_class = CoreAccelerator

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if isinstance(own["name"], staticmethod):
            cls.name = _Name(own["name"].__func__())
        if "parse_devices" in own:
            cls.parse_devices = staticmethod(_parsing(cls, cls.parse_devices))  # type: ignore[assignment,method-assign]
        if "setup" in own:
            cls.setup = _awaiting_trainer(own["setup"])  # type: ignore[method-assign]

    @abstractmethod
    def setup_device(self, device: torch.device) -> None:
        """Make `device` the current one of this process."""

    @abstractmethod
    def teardown(self) -> None:
        """Give back what `setup` took."""

    @staticmethod
    @abstractmethod
    def parse_devices(devices: Any) -> Any:
        """Turn what the user wrote into what `get_parallel_devices` takes: indices, or a number."""

    @staticmethod
    @abstractmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """The devices that `parse_devices` chose."""

    @staticmethod
    @abstractmethod
    def auto_device_count() -> int:
        """Number of devices that `devices="auto"` takes."""

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """True if such devices are here."""

    def setup(self, trainer: Any = None) -> None:
        """Prepare this process, when a stage begins. Meant to be overridden."""

    def get_device_stats(self, device: torch.device) -> Mapping[str, Any]:
        """Figures of `device` by name. Meant to be overridden."""
        return {}

    # core's names.

    @classmethod
    def detect(cls) -> Found | Absent:
        """Ask the program's methods."""
        if not cls.is_available():
            return Absent(f"{cls.__name__}.is_available() is false")
        return Found(cls.auto_device_count(), _BELOW_THE_CPU)

    def default_num_devices(self) -> int:
        """Number of devices that `devices="auto"` takes."""
        return self.auto_device_count()

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """The devices that `parse_devices` chose."""
        return list(self.get_parallel_devices(getattr(indices, "parsed", indices)))

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """The same figures as `get_device_stats`."""
        return self.get_device_stats(device)


def _parsing(cls: type[Accelerator], parse: Callable[[Any], Any]) -> Callable[[Any], _Indices]:
    """The program's `parse_devices`, which answers with indices, as core expects."""

    @functools.wraps(parse)
    def parse_devices(devices: Any) -> _Indices:
        parsed = parse(cls.auto_device_count() if devices in ("auto", -1) else devices)
        if not isinstance(parsed, int | list | tuple) or any(
            not isinstance(index, int) for index in _listed(parsed)
        ):
            raise ConfigurationError(
                f"{cls.__name__}.parse_devices({devices!r}) returned {parsed!r}. "
                "Expected indices of devices, such as [0, 1], or their number."
            )
        indices = _Indices(_listed(parsed))
        indices.parsed = parsed.parsed if isinstance(parsed, _Indices) else parsed
        return indices

    return parse_devices


def _listed(parsed: Any) -> list[Any]:
    return list(range(parsed)) if isinstance(parsed, int) else list(parsed)


def _awaiting_trainer(setup: Callable[[Any, Any], None]) -> Callable[..., None]:
    """The program's `setup`; core calls it before there is a run, when nothing happens yet."""

    @functools.wraps(setup)
    def with_trainer(self: Accelerator, trainer: Any = None) -> None:
        if trainer is not None:
            setup(self, trainer)

    return with_trainer


class SetsUpAccelerator(Callback):
    """Gives a program's own accelerator the Trainer, when a stage begins."""

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Call its `setup`."""
        accelerator = trainer.strategy.accelerator
        if Accelerator in type(accelerator).__mro__:  # isinstance finds core's own too
            accelerator.setup(trainer)  # type: ignore[call-arg]


class _InLightningsForm:
    """An accelerator of core's under Lightning's names. Stands before core's class."""

    @classmethod
    def is_available(cls) -> bool:
        """True if such devices are here."""
        return isinstance(cls.detect(), Found)  # type: ignore[attr-defined]  # of the other base

    @classmethod
    def auto_device_count(cls) -> int:
        """Number of devices that `devices="auto"` takes."""
        return int(cls().default_num_devices())  # type: ignore[attr-defined]

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:
        """The devices of these indices, or as many as this number."""
        return list(cls().torch_devices(_listed(devices)))  # type: ignore[attr-defined]

    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory of `device`, by name."""
        return dict(self.memory_stats(device))  # type: ignore[attr-defined]


CPUAccelerator = in_lightnings_form("CPUAccelerator", _InLightningsForm, CoreCPUAccelerator)
CUDAAccelerator = in_lightnings_form("CUDAAccelerator", _InLightningsForm, CoreCUDAAccelerator)
MPSAccelerator = in_lightnings_form("MPSAccelerator", _InLightningsForm, CoreMPSAccelerator)
