"""The device type `mps` in a torch that was built without Metal: the host computes, and float64 is
refused as there.

`build` compiles what torch keeps in C++ of a device, for some seconds. `register` makes
`torch.device("mps")` usable in this process, for good; call it before the first backward. A tensor
there is a wrapper around one on the CPU, as on the device of tests/downstream/sim-device; what
torch documents under `torch.mps` and `torch.backends.mps` answers.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "downstream" / "sim-device"))
from sim_device.host_tensor import HostTensor

COMPILER = shutil.which("c++")
_libraries: list[Any] = []


def build(folder: Path) -> Path:
    """Compile the library into a folder."""
    torch_folder, library = Path(torch.__file__).parent, folder / "metal.so"
    places = ["-I", torch_folder / "include", "-L", torch_folder / "lib"]
    source = Path(__file__).with_name("metal.cpp")
    options = [
        "-std=c++20",
        "-fPIC",
        "-shared",
        *places,
        source,
        "-o",
        library,
        "-lc10",
        "-ltorch_cpu",
    ]
    subprocess.run([COMPILER, *options], check=True, capture_output=True)
    return library


def register(library: Path) -> None:
    """Teach this process the device."""
    _libraries.append(ctypes.CDLL(str(library)))
    torch.backends.mps.is_built = lambda: True
    MPSTensor.register("MPS")


class MPSTensor(HostTensor):
    """A tensor on `mps:0`."""

    place = torch.device("mps", 0)

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> MPSTensor:
        if raw.dtype in (torch.float64, torch.complex128):
            raise TypeError(
                f"Cannot convert a MPS Tensor to {str(raw.dtype).removeprefix('torch.')} dtype as "
                "the MPS framework doesn't support float64. Please use float32 instead."
            )
        return HostTensor.__new__(cls, raw)
