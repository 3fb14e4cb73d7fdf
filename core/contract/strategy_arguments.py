"""The arguments of a strategy: given by name, or by position and then distinguished by their types.

The guides of other trainers have `accelerator` or `parallel_devices` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.accelerator import Accelerator
from core.contract.checkpoint_io import CheckpointIO
from core.contract.cluster_environment import ClusterEnvironment
from core.contract.errors import ConfigurationError, DeviceError
from core.contract.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_KINDS: dict[str, tuple[type, ...]] = {
    "accelerator": (Accelerator,),
    "parallel_devices": (list, tuple),
    "cluster_environment": (ClusterEnvironment,),
    "checkpoint_io": (CheckpointIO,),
    "precision_plugin": (Precision,),
}


def by_name(owner: str, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """All parts by their names.

    Args:
        owner: name of the strategy's class.
        given: by position; None leaves open.
        named: by name; None leaves open.

    Raises:
        ConfigurationError: something is no part, or is given twice.
        DeviceError: a device is no torch device.
    """
    parts = {name: part for name, part in named.items() if part is not None}
    for part in given:
        if part is None:
            continue
        name = next((name for name, kinds in _KINDS.items() if isinstance(part, kinds)), None)
        if name is None:
            shown = repr(part)[:80]
            if part is ...:
                shown = "..."
            raise ConfigurationError(
                f"{owner}({shown}): expected by position an Accelerator, a list of devices, "
                "a ClusterEnvironment, a CheckpointIO or a Precision. Give every other option by "
                "its name."
            )
        if name in parts:
            raise ConfigurationError(
                f"{owner} got two values for {name}, one of them by position. Leave one out."
            )
        parts[name] = part
    if "parallel_devices" in parts:
        import torch

        devices = []
        for device in parts["parallel_devices"]:
            try:
                devices.append(torch.device(device))
            except (RuntimeError, TypeError) as error:
                raise DeviceError(
                    f"{device!r} is not a device of torch. Expected a torch.device, or the name of "
                    "one: 'cpu', 'cuda:0'."
                ) from error
        parts["parallel_devices"] = devices
    return parts
