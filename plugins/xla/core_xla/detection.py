"""Looking for devices of XLA without torch_xla, which takes seconds to import and would begin to
use them.
"""

from __future__ import annotations

import glob
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from core import Absent, Broken, Found

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Detection: TypeAlias = Found | Absent | Broken

RUNTIME = "PJRT_DEVICE"
"""The variable that names torch_xla's runtime: `TPU`, or `CPU` for devices that the processor
plays.
"""

NUM_CPU_DEVICES = "CPU_NUM_DEVICES"
"""The variable that says how many devices the processor plays."""

PRIORITY = 90
_GOOGLE = "0x1ae0"
_TWO_CORES = "0x0027"
_TPUS = frozenset({_TWO_CORES, "0x005e", "0x0056", "0x0062", "0x0063", "0x006f", "0x0076"})
"""Google's devices on the bus that are TPUs, as torch_xla knows them: v2 and v3, v4, v5, v6e,
v7.
"""


def detect(pci_devices: str = "/sys/bus/pci/devices") -> Detection:
    """True if torch_xla has devices here: those that the variable `PJRT_DEVICE` chooses, or else
    TPUs.

    Args:
        pci_devices: the folder in which the system lists what is on its bus.
    """
    chosen = os.environ.get(RUNTIME, "").strip().upper()
    if chosen not in ("", "CPU", "TPU"):
        return Absent(
            f"{RUNTIME}={chosen!r} names a runtime that core-xla doesn't serve: it knows TPU and "
            "CPU"
        )
    found = Found(num_cpu_devices()) if chosen == "CPU" else detect_tpus(pci_devices)
    if not isinstance(found, Found):
        return found
    if find_spec("torch_xla") is None:
        return Broken(
            "its library is missing: run pip install torch_xla, for the same release as torch"
        )
    return Found(found.count, PRIORITY)


def detect_tpus(pci_devices: str = "/sys/bus/pci/devices") -> Detection:
    """Count the TPUs on the bus."""
    chosen = os.environ.get(RUNTIME, "").strip().upper()
    if chosen not in ("", "TPU"):
        return Absent(f"{RUNTIME}={chosen!r} names another runtime than TPU")
    count = sum(_num_devices(Path(folder)) for folder in glob.glob(f"{pci_devices}/*"))
    if count == 0:
        hint = f"; {RUNTIME}=CPU lets the processor play such devices" if not chosen else ""
        return Absent(f"no TPU is on this machine's bus{hint}")
    if next(_openable_files(), None) is None:
        return Broken(
            "TPUs are on the bus, and /dev has no file for them: load the driver, or map /dev into "
            "the container"
        )
    if find_spec("libtpu") is None:
        return Broken(
            "TPUs are on the bus, and their library is missing: run pip install 'torch_xla[tpu]'"
        )
    # Before `xla`, which finds the same devices: two of one priority would be a question to the
    # user.
    return Found(count, PRIORITY + 1)


def num_cpu_devices() -> int:
    """Number of devices that the processor plays."""
    text = os.environ.get(NUM_CPU_DEVICES, "").strip()
    return int(text) if text.isdecimal() and int(text) else 1


def plays_devices() -> bool:
    """True if the processor plays the devices, of which there may then be any number."""
    return os.environ.get(RUNTIME, "").strip().upper() == "CPU"


def _num_devices(folder: Path) -> int:
    """Number of devices behind one place on the bus: a TPU v2 or v3 is two."""
    device = _id_of(folder)
    if device not in _TPUS:
        return 0
    return 2 if device == _TWO_CORES else 1


def _id_of(folder: Path) -> str:
    """The id that Google gives the device; empty for those of others."""
    try:
        vendor, device = ((folder / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:
        return ""
    return device if vendor == _GOOGLE else ""


def _openable_files() -> Iterator[str]:
    return (
        file for pattern in ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*") for file in glob.glob(pattern)
    )


def counts_cpu_devices() -> bool:
    """True if the environment says how many devices the processor plays."""
    return bool(os.environ.get(NUM_CPU_DEVICES, "").strip())


def runs_devices_as_threads(pci_devices: str = "/sys/bus/pci/devices") -> bool:
    """True if torch_xla has several devices in one process: on the processor, and on TPU v2 and
    v3.
    """
    return plays_devices() or any(
        _id_of(Path(folder)) == _TWO_CORES for folder in glob.glob(f"{pci_devices}/*")
    )
