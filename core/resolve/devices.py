"""The forms in which a user may write `devices` and `num_nodes`. Nothing is asked of any device
here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError, DeviceError

if TYPE_CHECKING:
    from typing import TypeAlias

    from core.contract import ClusterEnvironment

    CheckedDevices: TypeAlias = int | list[int] | Literal["auto"]

_EXPECTED = "a number of devices (2), -1 for all, their indices ([1, 3] or '1,3'), or 'auto'"


def check_devices(devices: object) -> CheckedDevices:
    """The user's `devices`, in one of three forms.

    Returns:
        A number (-1 stands for all), a list of distinct indices, or `"auto"`.

    Raises:
        DeviceError: what is wrong with it, and how to write it instead.
    """
    if isinstance(devices, str):
        stripped = devices.strip()
        if stripped.casefold() == "auto":
            return "auto"
        if not stripped:
            raise _error(devices, "it is empty")
        # A comma makes a list, also of one index: "1," is the device with index 1, "1" any one
        # device.
        if "," not in stripped:
            return _check_number(_parse(stripped, devices), devices)
        parts = stripped.removesuffix(",").split(",")
        return _check_indices([_parse(part.strip(), devices) for part in parts], devices)
    if isinstance(devices, Sequence) and not isinstance(devices, bytes | bytearray):
        indices = []
        for item in devices:
            index = _integer(item)
            if index is None:
                raise _error(devices, f"{item!r} is not the index of a device")
            indices.append(index)
        return _check_indices(indices, devices)
    number = _integer(devices)
    if number is None:
        raise _error(devices, f"a {type(devices).__name__} is none of these")
    return _check_number(number, devices)


def check_num_nodes(num_nodes: object, environment: ClusterEnvironment) -> int:
    """The number of nodes; of `"auto"` the number that the environment has, or 1.

    Raises:
        ConfigurationError: it isn't.
    """
    if isinstance(num_nodes, str) and num_nodes.strip().casefold() == "auto":
        return environment.num_nodes() or 1
    number = _integer(num_nodes)
    if number is None or number < 1:
        raise ConfigurationError(
            f"num_nodes={num_nodes!r}: expected a whole number of machines from 1, or 'auto' for "
            "those that a scheduler or torchrun has started on. Leave it out for one machine."
        )
    return number


def _parse(part: str, text: str) -> int:
    digits = part.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return int(part)
    if "-" in part and all(side.strip().isdigit() for side in part.split("-", 1)):
        first, last = map(int, part.split("-", 1))
        listed = ",".join(map(str, range(first, min(last, first + 15) + 1))) or f"{first},{last}"
        raise _error(text, "ranges are not understood", f"Write the indices: devices={listed!r}.")
    if not part:
        raise _error(text, "an index between two commas is missing")
    raise _error(text, f"{part!r} is not a whole number")


def _check_number(number: int, written: object) -> int:
    if number == 0:
        raise _error(
            written,
            "it asks for no device at all",
            "Without a GPU write accelerator='cpu', devices=1.",
        )
    if number < -1:
        raise _error(written, "of the negative numbers only -1 means something: all devices")
    return number


def _check_indices(indices: list[int], written: object) -> list[int]:
    if not indices:
        raise _error(written, "it names no device", "Write devices='auto' to let core choose.")
    if min(indices) < 0:
        hint = "Indices begin at 0; for all devices write devices=-1, without a list."
        raise _error(written, f"{min(indices)} is not the index of a device", hint)
    repeated = [index for index in dict.fromkeys(indices) if indices.count(index) > 1]
    if repeated:
        problem = f"device {repeated[0]} is named twice, and each process needs one of its own"
        raise _error(written, problem, "Name each device once.")
    return indices


def _integer(value: Any) -> int | None:
    """`value` as an int if it is a whole number by type (NumPy's included), but not a truth
    value.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _error(written: object, problem: str, cure: str = "") -> DeviceError:
    return DeviceError(
        " ".join(filter(None, (f"devices={written!r}: {problem}.", cure, f"Expected {_EXPECTED}.")))
    )
