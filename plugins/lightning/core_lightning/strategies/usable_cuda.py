"""Finds the CUDA devices that can really be used. One in exclusive mode, or full, is counted all
the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from core import DeviceError, Found
from core.accelerators import CUDAAccelerator
from core_lightning.strategies import cuda_probe


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Try a small allocation on each CUDA device, and return on which ones it works.

    The attempt is made in a process of its own. So this process holds no context afterwards: it may
    still fork, and it doesn't itself occupy a device in exclusive mode.

    Args:
        num_devices: how many are wanted; -1 for all.

    Returns:
        Indices for `devices=`, the lowest first:
        `Trainer(accelerator="cuda", devices=find_usable_cuda_devices(2))`.

    Raises:
        DeviceError: there are fewer, with the reason for each device that can't be used.
    """
    if type(num_devices) is not int or num_devices == 0 or num_devices < -1:
        raise DeviceError(
            f"find_usable_cuda_devices({num_devices!r}): expected a number of devices from 1, or "
            "-1 for all of them."
        )
    detection = CUDAAccelerator.detect()
    if not isinstance(detection, Found):
        raise DeviceError(
            f"No CUDA device is here: {detection.reason}. Expected {_wanted(num_devices)}."
        )
    usable, unusable = _probe(detection.count, num_devices)
    if len(usable) < num_devices or not usable:
        listed = "".join(f"; device {index}: {reason}" for index, reason in unusable.items())
        raise DeviceError(
            f"Expected {_wanted(num_devices)}, and {len(usable)} of {detection.count} can be "
            f"used{listed}. Ask for fewer, or see who else uses them."
        )
    return usable


def _wanted(num_devices: int) -> str:
    return "at least 1 usable device" if num_devices == -1 else f"{num_devices} usable"


def _probe(count: int, wanted: int) -> tuple[list[int], dict[str, str]]:
    # -P: else the probe's own folder would come first on the module path, with a `cuda.py` in it.
    command = [sys.executable, "-P", cuda_probe.__file__, str(count), str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise DeviceError(
            f"The process that tries the CUDA devices ended with code {done.returncode}: {last} "
            "Choose devices yourself, as in devices=[0, 1], or look at nvidia-smi."
        )
    # The last line: a library may print something first.
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result["usable"], result["unusable"]
